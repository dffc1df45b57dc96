"""The models on this machine: one folder of readable GGUF files, with folders inside for names
that have a slash.

Beside `smollm2@135m.gguf` lies `smollm2@135m.json`, its record: where the file came from, its size
and its hash. There is no central list, so nothing can disagree with the folder, two pulls cannot
overwrite each other's work, and a GGUF file that the user drops in is a model as well. A record
that is missing or damaged costs only what it said; `Store.record` writes it again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePath
from typing import Any

from localllm.store.durable import disk_error, fsync_folder, replacing
from localllm.store.ref import MAX_PARTS, Ref, from_path

RECORD_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Record:
    """What is known about a model file. Texts are empty where the source did not say."""

    size: int  # bytes
    sha256: str
    source: str
    added: str  # UTC, ISO 8601
    architecture: str = ""
    quantization: str = ""
    licence: str = ""

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class Model:
    """A model file in the store."""

    ref: Ref
    path: Path  # of a split set the first file
    size: int  # bytes on disk, of all files
    modified: float  # seconds since 1970
    record: Record | None
    problem: str | None  # why there is no record, if there should be one
    damaged: Record | None = None  # what the file was before it got another size
    more: tuple[Path, ...] = ()  # the other files of a split set that are there

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path, *self.more)


class Store:
    """The models in one folder, which does not need to exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, ref: Ref) -> Path:
        """Where the model file of a name is, or will be."""
        return self.paths(ref)[0]

    def paths(self, ref: Ref, n_files: int = 1) -> tuple[Path, ...]:
        """Where the files of a name are, or will be, in the order of the split."""
        return tuple(self.folder / file for file in ref.files(n_files))

    def list(self) -> list[Model]:
        """All models, by name. Raises `FileError` if the folder cannot be read."""
        found = {ref: self.find(ref) for ref in map(from_path, self._files()) if ref is not None}
        return sorted((model for model in found.values() if model), key=lambda m: m.ref)

    def find(self, ref: Ref) -> Model | None:
        """The model of exactly this name, or None. A folder that is a link is not entered: it may
        lead out of the store."""
        whole = self.path(ref)
        try:
            if any(each.is_symlink() for each in self._folders(ref)):
                return None
            expected = (whole,) if whole.is_file() else self._split_files(ref)
            paths = [path for path in expected if path.is_file()]
            if not paths:
                return None
            stats = [path.stat() for path in paths]
        except OSError as e:
            raise disk_error("look at", whole, e) from e
        size, modified = sum(stat.st_size for stat in stats), max(stat.st_mtime for stat in stats)
        record, problem = self._read_record(ref)
        damaged = None
        if len(paths) < len(expected):
            problem = f"{len(expected) - len(paths)} of its {len(expected)} files are missing"
            record, damaged = None, record
        elif record is not None and record.size != size:
            what = "the file has" if len(paths) == 1 else f"its {len(paths)} files have"
            problem = f"{what} {size} bytes, its record says {record.size}"
            record, damaged = None, record
        return Model(ref, paths[0], size, modified, record, problem, damaged, tuple(paths[1:]))

    def record(self, ref: Ref, record: Record) -> None:
        """Writes the record of a model, whole or not at all."""
        path = self._record_path(ref)
        document = {"version": RECORD_VERSION, "name": str(ref), **asdict(record)}
        try:
            with replacing(path) as file:
                file.write(json.dumps(document, indent=1).encode() + b"\n")
        except OSError as e:
            raise disk_error("write", path, e) from e

    def remove(self, model: Model) -> None:
        """Deletes a model, its record and the folders that become empty. Raises `FileError` if the
        system refuses."""
        for path in (*model.files, self._record_path(model.ref)):
            try:
                path.unlink(missing_ok=True)
            except OSError as e:
                raise disk_error("delete", path, e) from e
        last = self.folder
        for folder in self._folders(model.ref):
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already
                last = folder if folder.is_dir() else self.folder
                break
        fsync_folder(last)

    def _files(self) -> Sequence[PurePath]:
        """Every file in the store, relative to it."""

        def refused(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise disk_error("read the model folder", self.folder, error) from error

        found = []
        for folder, folders, names in os.walk(self.folder, onerror=refused):
            inside = Path(folder).relative_to(self.folder)
            found += [inside / name for name in names]
            if len(inside.parts) >= MAX_PARTS - 1:
                folders.clear()
        return sorted(found)

    def _folders(self, ref: Ref) -> Sequence[Path]:
        """The folders of a name below the store, the innermost first."""
        return [self.folder / each for each in PurePath(ref.stem).parents][:-1]

    def _split_files(self, ref: Ref) -> tuple[Path, ...]:
        """The files of a split set whose first one is there, and where the others should be."""
        whole = self.path(ref)
        for first in sorted(whole.parent.glob(f"{whole.stem}-00001-of-*{whole.suffix}")):
            if from_path(first.relative_to(self.folder)) == ref and first.is_file():
                return self.paths(ref, int(first.stem[-5:]))
        return ()

    def _record_path(self, ref: Ref) -> Path:
        return self.folder / f"{ref.stem}.json"

    def _read_record(self, ref: Ref) -> tuple[Record | None, str | None]:
        path = self._record_path(ref)
        try:
            return _parse_record(json.loads(path.read_bytes())), None
        except FileNotFoundError:
            return None, None
        except (OSError, ValueError, RecursionError) as e:
            return None, f"its record {path.name} is damaged: {e}"


def _parse_record(document: Any) -> Record:
    if not isinstance(document, Mapping):
        raise ValueError("it is not a JSON object")
    if document.get("version") != RECORD_VERSION:
        raise ValueError(f"version is {document.get('version')!r}, expected {RECORD_VERSION}")
    size, sha256 = document.get("size"), document.get("sha256")
    if type(size) is not int or size < 0:
        raise ValueError(f"size is {size!r}, expected a number of bytes")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"sha256 is {sha256!r}, expected 64 hex digits")
    texts: dict[str, str] = {}
    for field in fields(Record):
        if field.name not in ("size", "sha256"):
            text = document.get(field.name)
            if not isinstance(text, str):
                raise ValueError(f"{field.name} is {text!r}, expected a text")
            texts[field.name] = text
    return Record(size=size, sha256=sha256, **texts)
