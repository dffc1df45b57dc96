"""From an offer to a model of the store: bytes, a check of the header, the record, the pin."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path

from localllm.errors import FileError, FormatError, UnsupportedError
from localllm.paths import Paths, ensure
from localllm.store.digest import full_digest
from localllm.store.durable import disk_error
from localllm.store.index import Model, Store
from localllm.store.lockfile import Lockfile
from localllm.store.offer import Offer
from localllm.store.record import FileRecord, Record
from localllm.store.ref import Ref
from localllm.store.transfer.progress import Report
from localllm.store.transfer.settings import DEFAULT, Settings


def pull_offer(
    offer: Offer,
    asked: Ref,
    paths: Paths,
    report: Report,
    *,
    settings: Settings = DEFAULT,
) -> Model:
    """Makes sure that the offered model is in the store as `offer.ref`, and returns it.

    asked: the name that led to the offer, which the lock file notes. Files that are there and right
    are left; files of another program are referenced where they lie. Raises `DownloadError`,
    `FileError`, `FormatError`; what has come by then is kept.
    """
    store = Store(ensure(paths.models))
    before = store.find(offer.ref)
    if before is not None and _is_another(before, offer):
        raise FileError(
            f"another model has the name {offer.ref}: {before.path} ({before.size:,} bytes)",
            f"Delete it with: localllm rm {offer.ref}",
        )
    if offer.in_place and _is_sound(offer):
        files = _referenced(offer)
    else:
        finals = store.paths(offer.ref, len(offer.files))
        files = _fetched(offer, finals, paths, report, settings)
        _forget_older(before, finals)
    store.record(offer.ref, record_of(offer, files))
    if offer.source == "hub" and all(file.sha256 for file in files):
        Lockfile().pin(asked, offer, {file.name: (file.size, file.sha256) for file in files})
    model = store.find(offer.ref)
    if model is None:
        raise FileError(f"{store.path(offer.ref)} was removed while it was being pulled")
    return model


def record_of(offer: Offer, files: Sequence[FileRecord]) -> Record:
    """The record of an offer whose files are there."""
    return Record(
        size=sum(file.size for file in files),
        sha256=files[0].sha256 if len(files) == 1 else "",
        source=f"{offer.source}: {offer.repository}",
        added=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        architecture=offer.architecture,
        quantization=offer.quantization,
        licence=offer.licence,
        kind=offer.source,
        repository=offer.repository,
        revision=offer.revision,
        files=tuple(files),
        settings=offer.settings,
    )


def _is_another(model: Model, offer: Offer) -> bool:
    """Whether the name belongs to a file that came from somewhere else, or from nobody knows where
    and is not what is offered."""
    record = model.record or model.damaged
    if record is None:
        return offer.size is not None and model.size != offer.size
    return bool(record.repository) and record.repository.lower() != offer.repository.lower()


def _require_model(offer: Offer, files: Sequence[Path]) -> None:
    """Deletes files that have come whole and are no model that anything can read."""
    try:
        _open(files[0])
    except FormatError as e:
        for path in files:
            with contextlib.suppress(OSError):
                path.unlink()
        raise FormatError(
            f"what {offer.repository} delivers as {offer.ref} is damaged there: {e.message}",
            "Nothing was installed. Try another source, or tell its owner.",
        ) from e


def _open(path: Path) -> None:
    """Checks the whole header of a file, or of the split set that it begins. Raises `FormatError`
    and `FileError`; a model that is valid and runs nowhere here is none of them."""
    from localllm.store.inspect import GgufFile

    with contextlib.suppress(UnsupportedError):
        GgufFile(path).close()


def _forget_older(before: Model | None, files: Sequence[Path]) -> None:
    """Deletes files of an earlier revision that had another number of them."""
    if before is None or before.elsewhere:
        return
    for path in before.files:
        if path not in files:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_sound(offer: Offer) -> bool:
    """Whether the files of another program have the content that their source names. Those of a
    source that names none, such as a path, are taken as they are."""
    for file, path in zip(offer.files, offer.in_place, strict=True):
        if file.sha256 is None or offer.source != "hub":
            continue
        try:
            is_right = full_digest(path) == f"sha256:{file.sha256}"
        except FileError:
            is_right = False
        if not is_right:
            return False
    return True


def _referenced(offer: Offer) -> list[FileRecord]:
    files = []
    _open(offer.in_place[0])
    for file, path in zip(offer.files, offer.in_place, strict=True):
        try:
            size = path.stat().st_size
        except OSError as e:
            raise disk_error("look at", path, e, movable=False) from e
        files.append(FileRecord(file.name, size, file.sha256 or "", str(path)))
    return files


def _fetched(
    offer: Offer,
    finals: Sequence[Path],
    paths: Paths,
    report: Report,
    settings: Settings,
) -> list[FileRecord]:
    from localllm.store.transfer.fetch import Wanted, fetch_all

    wanted = [Wanted(file, final) for file, final in zip(offer.files, finals, strict=True)]
    label = str(offer.ref)
    done = fetch_all(wanted, paths.downloads, report, label=label, settings=settings)
    _require_model(offer, [each.path for each in done])
    return [
        FileRecord(file.name, each.size, each.sha256)
        for file, each in zip(offer.files, done, strict=True)
    ]
