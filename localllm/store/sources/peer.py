"""Another localllm in this network: `http://host:port/NAME`, served there by `localllm share`.

It lists a model's files with their sizes and hashes, so what arrives is verified like a download
from anywhere. The key of a share that asks for one goes to the host that the user named for it, and
to no other: with `--api-key` to that of the command, else to those in LOCALLLM_API_KEY."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from localllm.errors import DownloadError, LocalLLMError
from localllm.store.identifiers import Digest
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.ref import parse
from localllm.store.settings import from_document
from localllm.store.transfer.small import Small, get
from localllm.store.wanted import PeerName

SOURCE = "peer"
KEY_VARIABLE = "LOCALLLM_API_KEY"
#: The paths that a share answers; NAME is a name in its store.
LIST_PATH = "/localllm/models"
MODEL_PATH, FILE_PATH = "/localllm/models/", "/localllm/files/"
MOST_NAMES = 1000
_SHOWN_NAMES = 10
_MAX_BYTES = 4 << 20
_MOST_FILES = 999
_MOST_BYTES = 1 << 50


def resolve(wanted: PeerName, key: str = "") -> Offer:
    """What the peer has under the name, or under the only name there that ends or begins like it.
    key: for its host; "": the one of the environment, if that names this host. Raises
    `DownloadError`."""
    host = wanted.url.partition("://")[2]
    key = key or key_of_environment(host)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = _described(wanted, headers)
    if answer.status == 404:
        names = _names(wanted, headers)
        if len(near := [name for name in names if _is_near(str(wanted.ref), name)]) == 1:
            wanted = PeerName(wanted.url, parse(near[0]))
            answer = _described(wanted, headers)
    if answer.status in (401, 403):
        raise DownloadError(
            f"{host} refuses the key that was sent" if key else f"{host} asks for a key",
            f"Its owner gave one to share: localllm pull --api-key @FILE {wanted.url}/... , or set "
            f"{KEY_VARIABLE}={host}=KEY",
        )
    if answer.status == 404:
        shown = ", ".join((near or names)[:_SHOWN_NAMES])
        more = ", ..." if len(near or names) > _SHOWN_NAMES else ""
        raise DownloadError(
            f"{host} shares no model called {wanted.ref}",
            f"It shares: {shown}{more}" if shown else "See there: localllm list",
        )
    if answer.status != 200:
        raise DownloadError(
            f"{host} answered {answer.status}", "Is `localllm share` running on that machine?"
        )
    try:
        return _offer(wanted, json.loads(answer.body), headers)
    except (ValueError, RecursionError, LocalLLMError) as e:
        raise DownloadError(
            f"the answer of {host} cannot be understood: {str(e)[:200]}",
            "Is it a localllm of this version or a later one?",
        ) from e


def _described(wanted: PeerName, headers: Mapping[str, str]) -> Small:
    name = quote(str(wanted.ref), safe="")
    return get(f"{wanted.url}{MODEL_PATH}{name}", headers, _MAX_BYTES)


def _names(wanted: PeerName, headers: Mapping[str, str]) -> list[str]:
    """What the peer shares; nothing where it is too old to say."""
    try:
        answer = get(f"{wanted.url}{LIST_PATH}", headers, _MAX_BYTES)
        rows = json.loads(answer.body)["models"] if answer.status == 200 else []
        return [str(parse(row)) for row in rows[:MOST_NAMES]]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, LocalLLMError):
        return []


def _is_near(asked: str, name: str) -> bool:
    """Whether a name is the asked one with more before or behind it: a host, a tag."""
    name, asked = f"/{name.lower()}", f"/{asked.lower()}"
    return name.endswith(asked) or f"{asked}:" in name


def key_of_environment(host: str) -> str:
    """The key for a host in `HOST:PORT=KEY HOST:PORT=KEY ...`, "" if there is none."""
    for row in os.environ.get(KEY_VARIABLE, "").split():
        named, separator, key = row.partition("=")
        if separator and named.lower() == host and key.isascii() and key.isprintable():
            return key
    return ""


def _offer(wanted: PeerName, document: Any, headers: Mapping[str, str]) -> Offer:
    if not isinstance(document, Mapping):
        raise DownloadError("it is no JSON object")
    rows = document.get("files")
    if not isinstance(rows, list) or not 1 <= len(rows) <= _MOST_FILES:
        raise DownloadError("it names no files")
    base = f"{wanted.url}{FILE_PATH}{quote(str(wanted.ref), safe='')}"
    return Offer(
        ref=wanted.ref,
        source=SOURCE,
        repository=f"{wanted.url}/{wanted.ref}",
        revision="",
        files=tuple(_file(f"{base}/{i}", i, row, headers) for i, row in enumerate(rows)),
        settings=from_document(document.get("settings", {})),
        quantization=_text(document, "quantization"),
        architecture=_text(document, "architecture"),
        licence=_text(document, "licence"),
    )


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise DownloadError(f"its {key} is no text of one line")
    return value


def _file(url: str, i: int, row: Any, headers: Mapping[str, str]) -> RemoteFile:
    if not isinstance(row, Mapping):
        raise DownloadError(f"file {i} is no JSON object")
    size, sha256 = row.get("size"), row.get("sha256")
    if type(size) is not int or not 0 < size <= _MOST_BYTES:
        raise DownloadError(f"file {i} has the size {size!r:.40}")
    if sha256:  # raises for anything but 64 digits
        sha256 = Digest(f"sha256:{sha256}").hexadecimal
    location = Location(url, headers)
    return RemoteFile(f"file {i + 1}", size, sha256 or None, lambda: location)
