"""What lies in the folders of this program and belongs to no model: the table of what `gc` clears
away. A model, and a file of the user's own, is never among it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from localllm.errors import FileError
from localllm.paths import Paths
from localllm.store import kv_cache
from localllm.store import record as records
from localllm.store.catalog import Catalog
from localllm.store.durable import TEMPORARY, disk_error, is_stale
from localllm.store.foreign import stores
from localllm.store.index import Store
from localllm.store.ref import SUFFIX, from_path
from localllm.store.transfer import lease, partials
from localllm.store.transfer.partials import Waiting, allocated

TOKENIZER_DAYS = 90  # since a derived vocabulary was last read
_DAY_S = 86400
_UNFINISHED_S = _DAY_S  # a file without an owner's number is left alone for so long


@dataclass(frozen=True)
class Leftover:
    """Files that nobody needs. Texts may come from a note and be anything."""

    kind: str  # "download", "temporary", "record", "used mark", "tokenizer", "conversations"
    what: str  # for people
    paths: tuple[Path, ...]
    size: int  # bytes on the disk
    modified: float  # seconds since 1970 when it was last written, or read if that is what counts
    waiting: Waiting | None = None  # a download that can be taken up again


def find(paths: Paths, catalog: Catalog, older_than_s: float = 0.0) -> list[Leftover]:
    """All of them, or those that nobody has touched for so many seconds. Raises `FileError` if a
    folder cannot be read."""
    store = Store(paths.models)
    found = (
        *_downloads(paths.downloads),
        *_wheels(paths.downloads, catalog),
        *_temporary(paths),
        *_records(store),
        *_marks(store),
        *_tokenizers(paths.cache / "tokenizers"),
        *_conversations(paths.kv, store),
    )
    latest = time.time() - older_than_s
    return [each for each in found if older_than_s <= 0 or each.modified <= latest]


def remove(leftover: Leftover) -> None:
    """Deletes one. Raises `FileError`."""
    if leftover.waiting is not None:
        partials.remove(leftover.waiting)
        return
    for path in leftover.paths:
        if leftover.kind == "conversations":
            kv_cache.forget(path)
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as e:
            raise disk_error("delete", path, e) from e


def _downloads(folder: Path) -> Iterator[Leftover]:
    for waiting in partials.listing(folder):
        if not waiting.held:
            files = waiting.files
            what = f"{waiting.label or waiting.name}: a download that is not complete"
            yield Leftover(
                "download", what, (files.data, files.journal, files.note), waiting.disk_bytes,
                waiting.modified, waiting,
            )  # fmt: skip


def _wheels(folder: Path, catalog: Catalog) -> Iterator[Leftover]:
    for entry in catalog:
        paths = tuple(path for part in entry.parts if (path := folder / part.wheel).is_file())
        if paths:
            what = f"{entry.ref}: parts of a download that is not complete"
            size, modified = sum(map(allocated, paths)), max(map(_written, paths))
            yield Leftover("download", what, paths, size, modified)


def _temporary(paths: Paths) -> Iterator[Leftover]:
    """Files of processes that are gone."""
    alive: dict[int, bool] = {}

    def is_left(path: Path) -> bool:
        number = path.name.split(".")[-2] if path.name.count(".") > 1 else ""
        if not number.isascii() or not number.isdigit() or len(number) > 18:
            return False
        pid = int(number)
        if pid not in alive:
            alive[pid] = lease.started(pid) is not None
        return is_stale(path, {pid} if alive[pid] else set())

    for folder in (paths.models, paths.downloads, paths.config, paths.answers, paths.data):
        for path in _below(folder, deep=folder == paths.models):
            if path.name.endswith(TEMPORARY) and is_left(path):
                yield Leftover(
                    "temporary", f"{path.name}: of a process that is gone", (path,),
                    allocated(path), _written(path),
                )  # fmt: skip
    # What pip was fetching: a folder.
    for path in sorted(paths.downloads.glob(f"pip-*{TEMPORARY}")):
        if path.is_dir() and not path.is_symlink() and is_left(path):
            size = sum(map(allocated, _below(path, deep=True)))
            what = f"{path.name}: of a process that is gone"
            yield Leftover("temporary", what, (path,), size, _written(path))
    for path in _below(paths.cache / "tokenizers"):
        if path.suffix == ".part" and (modified := _touched(path)) < time.time() - _UNFINISHED_S:
            what = f"{path.name}: never finished"
            yield Leftover("temporary", what, (path,), allocated(path), modified)


def _records(store: Store) -> Iterator[Leftover]:
    for path in _below(store.folder, deep=True):
        if path.suffix != ".json":
            continue
        ref = from_path(PurePath(path.relative_to(store.folder)).with_suffix(SUFFIX))
        try:
            record = records.parse(json.loads(path.read_bytes())) if ref else None
        except (OSError, ValueError, RecursionError):
            continue  # whatever it is, it is no record of ours
        if ref is None or record is None:
            continue
        model = store.find(ref)
        # A folder that is gone as well may be on a disk that is not plugged in.
        lost = (
            model is not None
            and model.elsewhere
            and not any(each.exists() or not each.parent.is_dir() for each in record.elsewhere)
        )
        if model is None or lost:
            where = f", which lay at {record.elsewhere[0]}" if lost else ""
            yield Leftover(
                "record", f"{ref}: the record of a file that is gone{where}", (path,),
                allocated(path), _written(path),
            )  # fmt: skip


def _marks(store: Store) -> Iterator[Leftover]:
    known = {store.used_path(model.ref) for model in store.list()}
    for path in _below(store.folder, deep=True):
        is_mark = path.name.startswith(".") and path.name.endswith(".used")
        if is_mark and path not in known and path.stat().st_size == 0:
            yield Leftover(
                "used mark", f"{path.name}: when a model was used that is gone", (path,), 0,
                _written(path),
            )  # fmt: skip


def _tokenizers(folder: Path) -> Iterator[Leftover]:
    for path in _below(folder):
        oldest = time.time() - TOKENIZER_DAYS * _DAY_S
        if path.suffix == ".merges" and (modified := _touched(path)) < oldest:
            what = f"{path.name[:12]}: a vocabulary's merges, not read for {TOKENIZER_DAYS} days"
            yield Leftover("tokenizer", what, (path,), allocated(path), modified)


def _conversations(root: Path, store: Store) -> Iterator[Leftover]:
    """What was computed with models that are not here any more, or that are run by their path."""
    if not (folders := kv_cache.folders(root)):
        return
    digests = kv_cache.known_digests(store.list())
    digests |= {f"sha256:{each.sha256}" for each in stores.models() if each.sha256}
    known = {kv_cache.model_folder(root, digest) for digest in digests}
    for folder in folders:
        if folder not in known:
            what = f"{folder.name[:12]}: computed conversations, of no model that has a name here"
            size = kv_cache.folder_bytes(folder)
            newest = max(map(_written, [folder, *folder.rglob("*")]))
            yield Leftover("conversations", what, (folder,), size, newest)


def _below(folder: Path, *, deep: bool = False) -> list[Path]:
    """The files of a folder, without those behind links to other folders."""

    def refused(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise FileError(f"cannot read {folder}: {error.strerror or error}") from error

    found = []
    for base, folders, names in os.walk(folder, onerror=refused):
        found += [path for name in names if not (path := Path(base, name)).is_symlink()]
        if not deep:
            folders.clear()
    return sorted(found)


def _written(path: Path) -> float:
    """When a file was last written, in seconds since 1970; now if it cannot be asked."""
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _touched(path: Path) -> float:
    """When a file was last read or written."""
    with contextlib.suppress(OSError):
        return max(path.stat().st_atime, _written(path))
    return time.time()
