"""The models on this machine: one folder of readable GGUF files.

Beside `smollm2@135m.gguf` lies `smollm2@135m.json`, its record: where the file came from, its size
and its hash. There is no central list, so nothing can disagree with the folder, two pulls cannot
overwrite each other's work, and a GGUF file that the user drops in is a model as well. A record
that is missing or damaged costs only what it said; `Store.record` writes it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from localllm.store.durable import disk_error, fsync_folder, replacing
from localllm.store.ref import SUFFIX, Ref, from_stem

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
    path: Path
    size: int  # bytes on disk
    modified: float  # seconds since 1970
    record: Record | None
    problem: str | None  # why there is no record, if there should be one
    damaged: Record | None = None  # what the file was before it got another size


class Store:
    """The models in one folder, which does not need to exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, ref: Ref) -> Path:
        """Where the model file of a name is, or will be."""
        return self.folder / f"{ref.stem}{SUFFIX}"

    def list(self) -> list[Model]:
        """All models, by name. Raises `FileError` if the folder cannot be read."""
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as e:
            raise disk_error("read the model folder", self.folder, e) from e
        refs = [from_stem(path.stem) for path in paths if path.suffix == SUFFIX]
        found = (self.find(ref) for ref in refs if ref is not None)
        return sorted((model for model in found if model is not None), key=lambda m: m.ref)

    def find(self, ref: Ref) -> Model | None:
        """The model of exactly this name, or None."""
        path = self.path(ref)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        except OSError as e:
            raise disk_error("look at", path, e) from e
        if not path.is_file():
            return None
        size = stat.st_size
        record, problem = self._read_record(ref)
        if record is None or record.size == size:
            return Model(ref, path, size, stat.st_mtime, record, problem)
        problem = f"the file has {size} bytes, its record says {record.size}"
        return Model(ref, path, size, stat.st_mtime, None, problem, damaged=record)

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
        """Deletes a model and its record. Raises `FileError` if the system refuses."""
        for path in (model.path, self._record_path(model.ref)):
            try:
                path.unlink(missing_ok=True)
            except OSError as e:
                raise disk_error("delete", path, e) from e
        fsync_folder(self.folder)

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
