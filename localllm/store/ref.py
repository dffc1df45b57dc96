"""Names of models in the store. A name is `name:tag`, such as `smollm2:135m`; the tag `latest` may
be left out. What does not come from the catalogue has up to three folders before it:
`hf.co/user/repo:q4_k_m`, `registry.example+5000/team/name`.

Names are turned into file names, so only characters that are harmless in every file system are
let through, and letters are lowered because some file systems do not tell case apart. The file
name can be turned back into the name: `smollm2@135m.gguf`, `mine.gguf` (for `mine:latest`),
`hf.co/user/repo@q4_k_m.gguf`; a set of split files is `name@tag-00001-of-00003.gguf` and on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from localllm.errors import ArgumentError

MAX_PART = 96  # characters between two slashes and in a tag; the Hub's names have no more
MAX_PARTS = 4  # folders and the name
MAX_FILES = 999  # of a split set
DEFAULT_TAG = "latest"
SUFFIX = ".gguf"

_PART = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?", re.ASCII)
# A folder may be a host with its port: `host:5000` is kept as `host+5000`.
_HOST = re.compile(r"[a-z0-9](?:(?:-*|\.)[a-z0-9])*\+[0-9]{1,5}", re.ASCII)
_SPLIT = re.compile(r"-([0-9]{5})-of-([0-9]{5})", re.ASCII)
_PATH = re.compile(r"[~/]|\.\.?[/\\]|[A-Za-z]:[/\\]", re.ASCII)
# Suffixes that say in the store what a file is; a name must not pass for one of them.
_RESERVED = (SUFFIX, ".json", ".partial", ".tmp")
# Windows reserves these in every folder, whatever follows the first dot.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{device}{digit}" for device in ("com", "lpt") for digit in "0123456789"]
)
_HINT = "A model name looks like smollm2:135m. A file needs its folder or .gguf: ./model.gguf"


@dataclass(frozen=True, order=True)
class Ref:
    """A valid model name. `str(ref)` is `name:tag`, or `name` for the default tag; `name` holds
    the folders too."""

    name: str
    tag: str = DEFAULT_TAG

    def __str__(self) -> str:
        return self.name if self.tag == DEFAULT_TAG else f"{self.name}:{self.tag}"

    @property
    def stem(self) -> str:
        """The path in the store without its suffix: `name@tag`, or `name` for the default tag."""
        return self.name if self.tag == DEFAULT_TAG else f"{self.name}@{self.tag}"

    def files(self, n_files: int = 1) -> tuple[str, ...]:
        """The paths in the store, with forward slashes, of a model in so many files."""
        if not 1 <= n_files <= MAX_FILES:
            raise ArgumentError(f"a model in {n_files} files is out of range: 1 to {MAX_FILES}")
        if n_files == 1:
            return (f"{self.stem}{SUFFIX}",)
        numbers = range(1, n_files + 1)
        return tuple(f"{self.stem}-{i:05}-of-{n_files:05}{SUFFIX}" for i in numbers)


def parse(text: str) -> Ref:
    """The name in `text`. Raises `ArgumentError` saying which part breaks which rule."""
    if not text:
        raise ArgumentError("the model name is empty", _HINT)
    *folders, last = text.split("/")
    if "\\" in text:
        raise ArgumentError(f"the model name {_shown(text)} holds a backslash", _HINT)
    if len(folders) >= MAX_PARTS:
        raise ArgumentError(
            f"the model name {_shown(text)} has {len(folders) + 1} parts between slashes, "
            f"at most {MAX_PARTS} are allowed",
            _HINT,
        )
    for folder in folders:
        if not (len(folder) <= MAX_PART and _HOST.fullmatch(folder.lower())):
            _check(text, "folder", folder)
    name, colon, tag = last.partition(":")
    _check(text, "name", name)
    if colon:
        _check(text, "tag", tag)
    whole = "/".join([*folders, name]).lower()
    return Ref(whole, tag.lower() if colon else DEFAULT_TAG)


def from_path(path: PurePath) -> Ref | None:
    """The name that a path relative to the store stands for (for a split set its first file), or
    None for a file that no name leads to."""
    if path.suffix != SUFFIX:
        return None
    relative = path.as_posix()
    stem, n_files = relative.removesuffix(SUFFIX), 1
    if (match := _SPLIT.search(stem)) and match.end() == len(stem):
        stem, n_files = stem[: match.start()], int(match[2])
    folder, _, last = stem.rpartition("/")
    name, at, tag = last.partition("@")
    prefix = f"{folder}/" if folder else ""
    try:
        ref = parse(f"{prefix}{name}:{tag}" if at else f"{prefix}{name}")
        return ref if ref.files(n_files)[0] == relative else None
    except ArgumentError:
        return None


def is_path(text: str) -> bool:
    """Whether the user means a file or a folder: it begins with ./ ../ / ~ or a drive, holds a
    backslash, or ends in .gguf."""
    return bool(_PATH.match(text)) or "\\" in text or text.lower().endswith(SUFFIX)


def _check(text: str, what: str, part: str) -> None:
    if not part:
        raise ArgumentError(f"the model name {_shown(text)} has an empty {what}", _HINT)
    if len(part) > MAX_PART:
        raise ArgumentError(
            f"the {what} in the model name {_shown(text)} has {len(part)} characters, "
            f"at most {MAX_PART} are allowed",
            _HINT,
        )
    lowered = part.lower()
    if not part.isascii() or not _PART.fullmatch(lowered):
        raise ArgumentError(
            f"the {what} in the model name {_shown(text)} may hold only letters a to z, digits, "
            "'.', '_' and '-', and must begin and end with a letter or digit",
            _HINT,
        )
    if ".." in part or lowered.endswith(_RESERVED):
        raise ArgumentError(f"the {what} in the model name {_shown(text)} reads like a path", _HINT)
    if (match := _SPLIT.search(lowered)) and match.end() == len(lowered):
        raise ArgumentError(
            f"the {what} in the model name {_shown(text)} reads like one file of a split set",
            "Name the set, without -00001-of-0000N.",
        )
    if lowered.split(".")[0] in _DEVICES:
        raise ArgumentError(
            f"the {what} in the model name {_shown(text)} is a device name on Windows", _HINT
        )


def _shown(text: str) -> str:
    """The name as a message quotes it: printable ASCII, cut where it is very long."""
    return ascii(text if len(text) <= 128 else f"{text[:128]}...")
