"""Keys that clients must send, from the command line or from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localllm.errors import ArgumentError, FileError

_SHORTEST, _LONGEST = 8, 256
_LONGEST_FILE = 1 << 16


def read_keys(given: Sequence[str]) -> tuple[str, ...]:
    """The keys of `--api-key`: each a key, or `@FILE` with one a line. Raises `ArgumentError` for
    one that is too short to be a secret, `FileError`."""
    keys: list[str] = []
    for text in given:
        keys += _from_file(text[1:]) if text.startswith("@") else [text]
    return tuple(map(_checked, keys))


def _from_file(name: str) -> list[str]:
    try:
        with Path(name).expanduser().open("rb") as file:
            lines = file.read(_LONGEST_FILE).decode("ascii").splitlines()
    except (OSError, ValueError, RuntimeError) as e:
        reason = getattr(e, "strerror", None) or "it is no ASCII text"
        raise FileError(f"cannot read the key in {name[:200]}: {reason}") from e
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ArgumentError(f"there is no key in {name[:200]}")
    return keys


def _checked(key: str) -> str:
    good = key.isascii() and key.isprintable() and " " not in key
    if not good or not _SHORTEST <= len(key) <= _LONGEST:
        raise ArgumentError(
            f"--api-key: the key has {len(key)} characters",
            f"It may have {_SHORTEST} to {_LONGEST}, printable ASCII without spaces.",
        )
    return key
