"""What is known about a model of the store: where it came from, its hashes, its settings. A record
is the JSON file beside the model file, or stands alone for a model that lies elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localllm.store.identifiers import SHA256
from localllm.store.settings import NOTHING_SET, Settings, from_document

VERSION = 2
_VERSIONS = (1, 2)  # 1 had neither files nor settings
_MOST_FILES = 999
_TEXTS = (
    "source", "added", "architecture", "quantization", "licence", "kind", "repository", "revision",
)  # fmt: skip


@dataclass(frozen=True)
class FileRecord:
    """One file. sha256 is empty where nobody has taken it."""

    name: str  # as the source calls it, never joined to a path
    size: int  # bytes
    sha256: str = ""
    path: str = ""  # where it lies, if that is not its place in the store


@dataclass(frozen=True)
class Record:
    """Texts are empty where the source did not say. sha256 is that of a single file, and empty for
    a split set and for a file that nobody has hashed."""

    size: int  # bytes of all files
    sha256: str
    source: str  # for people
    added: str  # UTC, ISO 8601
    architecture: str = ""
    quantization: str = ""
    licence: str = ""
    kind: str = ""  # a key of store/sources, "" for the package index
    repository: str = ""
    revision: str = ""
    files: tuple[FileRecord, ...] = ()
    settings: Settings = NOTHING_SET

    @property
    def digest(self) -> str | None:
        return f"sha256:{self.sha256}" if self.sha256 else None

    @property
    def elsewhere(self) -> tuple[Path, ...]:
        """Where the files lie, if not in the store."""
        return tuple(Path(file.path) for file in self.files if file.path)

    def document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            **asdict(self),
            "files": [asdict(file) for file in self.files],
            "settings": self.settings.document(),
        }


def parse(document: Any) -> Record:
    """A record from its JSON. Raises `ValueError` naming the field."""
    if not isinstance(document, Mapping):
        raise ValueError("it is not a JSON object")
    if document.get("version") not in _VERSIONS:
        raise ValueError(f"version is {document.get('version')!r}, expected {VERSION}")
    texts = {name: _text(document, name, name in _TEXTS[5:]) for name in _TEXTS}
    files = document.get("files", [])
    if not isinstance(files, list) or len(files) > _MOST_FILES:
        raise ValueError("files is no list of files")
    return Record(
        size=_size(document),
        sha256=_sha256(document),
        files=tuple(map(_file, files)),
        settings=from_document(document.get("settings", {})),
        **texts,
    )


def _file(document: Any) -> FileRecord:
    if not isinstance(document, Mapping):
        raise ValueError("a file is not a JSON object")
    path = _text(document, "path", optional=True)
    if path and not Path(path).is_absolute():
        raise ValueError(f"path is {path[:80]!r}, expected a whole path")
    return FileRecord(_text(document, "name"), _size(document), _sha256(document), path)


def _size(document: Mapping[str, Any]) -> int:
    size = document.get("size")
    if type(size) is not int or size < 0:
        raise ValueError(f"size is {size!r}, expected a number of bytes")
    return size


def _sha256(document: Mapping[str, Any]) -> str:
    sha256 = document.get("sha256")
    if not isinstance(sha256, str) or (sha256 and not SHA256.fullmatch(sha256)):
        raise ValueError(f"sha256 is {sha256!r}, expected 64 hex digits")
    return sha256


def _text(document: Mapping[str, Any], name: str, optional: bool = False) -> str:
    text = document.get(name, "" if optional else None)
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r}, expected a text")
    return text
