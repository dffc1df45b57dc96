"""Model names. A name is `name:tag`, such as `smollm2:135m`; the tag `latest` may be left out.

Names are turned into file names, so only characters that are harmless in every file system are
let through, and letters are lowered because some file systems do not tell case apart. The file
name can be turned back into the name: `smollm2@135m.gguf`, `mine.gguf` (for `mine:latest`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from localllm.errors import ArgumentError

MAX_PART = 64  # characters in a name and in a tag
DEFAULT_TAG = "latest"
SUFFIX = ".gguf"

_PART = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?", re.ASCII)
# Windows reserves these in every folder, whatever follows the first dot.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{device}{digit}" for device in ("com", "lpt") for digit in "0123456789"]
)
_HINT = "A model name looks like smollm2:135m. A file needs its folder or .gguf: ./model.gguf"


@dataclass(frozen=True, order=True)
class Ref:
    """A valid model name. `str(ref)` is `name:tag`, or `name` for the default tag."""

    name: str
    tag: str = DEFAULT_TAG

    def __str__(self) -> str:
        return self.name if self.tag == DEFAULT_TAG else f"{self.name}:{self.tag}"

    @property
    def stem(self) -> str:
        """The file name without its suffix: `name@tag`, or `name` for the default tag."""
        return self.name if self.tag == DEFAULT_TAG else f"{self.name}@{self.tag}"


def parse(text: str) -> Ref:
    """The name in `text`. Raises `ArgumentError` saying which part breaks which rule."""
    if not text:
        raise ArgumentError("the model name is empty", _HINT)
    name, colon, tag = text.partition(":")
    if "/" in text or "\\" in text:
        raise ArgumentError(f"the model name {text!a} holds a slash", _HINT)
    _check(text, "name", name)
    if colon:
        _check(text, "tag", tag)
    return Ref(name.lower(), tag.lower() if colon else DEFAULT_TAG)


def from_stem(stem: str) -> Ref | None:
    """The name that a file stem stands for, or None for a file that no name leads to."""
    name, at, tag = stem.partition("@")
    try:
        ref = parse(f"{name}:{tag}" if at else name)
    except ArgumentError:
        return None
    return ref if ref.stem == stem else None


def is_path(text: str) -> bool:
    """Whether the user means a file: it has a folder, starts with ~ or ends in .gguf."""
    return "/" in text or "\\" in text or text.startswith("~") or text.lower().endswith(SUFFIX)


def _check(text: str, what: str, part: str) -> None:
    shown = text if len(text) <= 2 * MAX_PART else text[: 2 * MAX_PART] + "..."
    if not part:
        raise ArgumentError(f"the model name {shown!a} has an empty {what}", _HINT)
    if len(part) > MAX_PART:
        raise ArgumentError(
            f"the {what} in the model name {shown!a} has {len(part)} characters, "
            f"at most {MAX_PART} are allowed",
            _HINT,
        )
    lowered = part.lower()
    if not part.isascii() or not _PART.fullmatch(lowered):
        raise ArgumentError(
            f"the {what} in the model name {shown!a} may hold only letters a to z, digits, '.', "
            "'_' and '-', and must begin and end with a letter or digit",
            _HINT,
        )
    if ".." in part or lowered.endswith(SUFFIX):
        raise ArgumentError(f"the {what} in the model name {shown!a} reads like a path", _HINT)
    if lowered.split(".")[0] in _DEVICES:
        raise ArgumentError(
            f"the {what} in the model name {shown!a} is a device name on Windows", _HINT
        )
