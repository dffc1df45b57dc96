"""The models on this machine: one folder of readable GGUF files, with folders inside for names
that have a slash.

Beside `smollm2@135m.gguf` lies `smollm2@135m.json`, its record: where the file came from, its size
and its hash. There is no central list, so nothing can disagree with the folder, two pulls cannot
overwrite each other's work, and a GGUF file that the user drops in is a model as well. A record
that is missing or damaged costs only what it said; `Store.record` writes it again. A record without
a model file beside it says where the files lie: another program's store, or a folder of the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from localllm.errors import FileError
from localllm.store import record as records
from localllm.store.durable import disk_error, fsync_folder, replacing
from localllm.store.record import Record
from localllm.store.ref import MAX_PARTS, SUFFIX, Ref, from_path

__all__ = ["Model", "Record", "Store"]

_RECORD = ".json"


@dataclass(frozen=True)
class Model:
    """A model of the store."""

    ref: Ref
    path: Path  # of a split set the first file
    size: int  # bytes on disk, of all files
    modified: float  # seconds since 1970
    record: Record | None
    problem: str | None  # why there is no record, if there should be one
    damaged: Record | None = None  # what the file was before it got another size
    more: tuple[Path, ...] = ()  # the other files of a split set that are there
    used: float = 0.0  # seconds since 1970 when it was last loaded, 0: never
    elsewhere: bool = False  # the files are not the store's, and are never deleted

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
        refs = {from_path(_as_model(path)) for path in self._files()}
        found = [self.find(ref) for ref in refs if ref is not None]
        return sorted((model for model in found if model), key=lambda m: m.ref)

    def find(self, ref: Ref) -> Model | None:
        """The model of exactly this name, or None. A folder that is a link is not entered: it may
        lead out of the store."""
        whole = self.path(ref)
        try:
            if self._link(ref) is not None:
                return None
            expected = (whole,) if whole.is_file() else self._split_files(ref)
            record, problem = self._read_record(ref)
            elsewhere = not expected and record is not None and bool(record.elsewhere)
            if elsewhere and record is not None:
                expected = record.elsewhere
            paths = [path for path in expected if path.is_file()]
            if not paths and not elsewhere:
                return None
            stats = [path.stat() for path in paths]
        except OSError as e:
            raise disk_error("look at", whole, e) from e
        size = sum(stat.st_size for stat in stats)
        damaged = None
        if len(paths) < len(expected):
            n = len(expected)
            problem = f"{n - len(paths)} of its {n} files are missing"
            if n == 1:
                problem = f"its file is gone: {expected[0]}"
            record, damaged = None, record
        elif record is not None and record.size != size:
            what = "the file has" if len(paths) == 1 else f"its {len(paths)} files have"
            problem = f"{what} {size} bytes, its record says {record.size}"
            record, damaged = None, record
        return Model(
            ref=ref,
            path=expected[0],
            size=size,
            modified=max((stat.st_mtime for stat in stats), default=0.0),
            record=record,
            problem=problem,
            damaged=damaged,
            more=tuple(path for path in paths if path != expected[0]),
            used=self._used(ref),
            elsewhere=elsewhere,
        )

    def require_inside(self, ref: Ref) -> None:
        """Raises `FileError` if a folder of the name is a link, which may lead out of the store."""
        if (link := self._link(ref)) is not None:
            raise FileError(
                f"{link} is a link, and links to folders in the store are not followed",
                f"To keep models on another disk, make {self.folder} the link, or set "
                "LOCALLLM_HOME.",
            )

    def _link(self, ref: Ref) -> Path | None:
        return next((each for each in self._folders(ref) if each.is_symlink()), None)

    def touch(self, ref: Ref) -> None:
        """Notes that a model is used now. A disk that refuses costs only the note."""
        path = self.used_path(ref)
        with contextlib.suppress(OSError):
            path.touch()
            os.utime(path)

    def record(self, ref: Ref, record: Record) -> None:
        """Writes the record of a model, whole or not at all."""
        self.require_inside(ref)
        path = self._record_path(ref)
        document = {"name": str(ref), **record.document()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(json.dumps(document, indent=1).encode() + b"\n")
        except OSError as e:
            raise disk_error("write", path, e) from e

    def remove(self, model: Model) -> None:
        """Deletes a model, its record and the folders that become empty; where the files lie
        elsewhere only the record. Raises `FileError` if the system refuses."""
        own = () if model.elsewhere else model.files
        for path in (*own, self._record_path(model.ref), self.used_path(model.ref)):
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
        return self.folder / f"{ref.stem}{_RECORD}"

    def used_path(self, ref: Ref) -> Path:
        """An empty file whose time is that of the last use; its name is none of a model."""
        record = self._record_path(ref)
        return record.with_name(f".{record.name[: -len(_RECORD)]}.used")

    def _used(self, ref: Ref) -> float:
        try:
            return self.used_path(ref).stat().st_mtime
        except OSError:
            return 0.0

    def _read_record(self, ref: Ref) -> tuple[Record | None, str | None]:
        path = self._record_path(ref)
        try:
            return records.parse(json.loads(path.read_bytes())), None
        except FileNotFoundError:
            return None, None
        except (OSError, ValueError, RecursionError) as e:
            return None, f"its record {path.name} is damaged: {e}"


def _as_model(path: PurePath) -> PurePath:
    """The model file that a record belongs to; another path as it is."""
    return path.with_suffix(SUFFIX) if path.suffix == _RECORD else path
