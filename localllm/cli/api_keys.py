"""Keys that clients must send, from the command line or from files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from localllm.errors import ArgumentError, FileError

_SHORTEST, _LONGEST = 8, 256
_LONGEST_FILE = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


def read_keys(given: Sequence[str]) -> tuple[str, ...]:
    """The keys of `--api-key`, without their names; see `read_named_keys`."""
    return tuple(key for _, key in read_named_keys(given))


def read_named_keys(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(name, key) of each `--api-key`: a key, which has no name, or `@FILE` with a line for each:
    KEY, or NAME KEY. A line that begins with "# " is a comment. Raises `ArgumentError` for a key
    that is too short to be a secret, or a name that is none, `FileError`."""
    keys: list[tuple[str, str]] = []
    for text in given:
        keys += _from_file(text[1:]) if text.startswith("@") else [("", text)]
    return tuple((name, _checked(key)) for name, key in keys)


def _from_file(file_name: str) -> list[tuple[str, str]]:
    try:
        with Path(file_name).expanduser().open("rb") as file:
            lines = file.read(_LONGEST_FILE).decode("ascii").splitlines()
    except (OSError, ValueError, RuntimeError) as e:
        reason = getattr(e, "strerror", None) or "it is no ASCII text"
        raise FileError(f"cannot read the key in {file_name[:200]}: {reason}") from e
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("# "):
            continue
        if len(words) > 2 or (len(words) == 2 and not _NAME.fullmatch(words[0])):
            raise ArgumentError(  # the line itself may be a secret
                f"line {number} of {file_name[:200]} is neither KEY nor NAME KEY",
                "A name has letters, digits and _ . @ -, at most 64; a key has no spaces.",
            )
        keys.append(("" if len(words) == 1 else words[0], words[-1]))
    if not keys:
        raise ArgumentError(f"there is no key in {file_name[:200]}")
    return keys


def _checked(key: str) -> str:
    good = key.isascii() and key.isprintable() and " " not in key
    if not good or not _SHORTEST <= len(key) <= _LONGEST:
        raise ArgumentError(
            f"--api-key: the key has {len(key)} characters",
            f"It may have {_SHORTEST} to {_LONGEST}, printable ASCII without spaces.",
        )
    return key
