"""Proxies of the environment, which httpx2 and pip read, and what is wrong with one that cannot be
used."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from localllm.errors import DownloadError

_VARIABLES = ("all_proxy", "https_proxy", "http_proxy")
_SCHEMES = ("http", "https", "socks5", "socks5h")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Around the making of an httpx2 client. Raises `DownloadError`."""
    import httpx2

    try:
        yield
    except (ImportError, ValueError, httpx2.InvalidURL) as e:
        if (error := unusable()) is None:
            raise
        raise error from e


def unusable() -> DownloadError | None:
    """What to say of the first variable that names a proxy that cannot be used here: most likely,
    as others are not looked at closely."""
    found = [(name, os.environ[name]) for name in os.environ if name.lower() in _VARIABLES]
    for name, value in found:
        scheme, separator, rest = value.strip().lower().partition("://")
        if separator and scheme not in _SCHEMES:
            return DownloadError(
                f"{name} names a proxy of the kind {scheme[:40]!a}, which is not known",
                f"Known are {', '.join(_SCHEMES)}, as in {name}=http://proxy.example:8080",
            )
        address = (rest if separator else scheme).rpartition("@")[2].rstrip("/")
        if not re.fullmatch(r"([^\s\[\]:/]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", address):
            return DownloadError(
                f"{name} holds no address of a proxy: {address[:100]!a}",
                f"An address looks like {name}=http://proxy.example:8080",
            )
        if scheme.startswith("socks"):
            return DownloadError(
                f"{name} names a SOCKS proxy ({scheme}://{address[:100]}), which needs packages "
                "that are not installed",
                "Install them: pip install socksio PySocks. Or put the address of an http proxy "
                f"into {name}, or unset it.",
            )
    return None
