"""From an offer to a model of the store: bytes, a check of the header, the record, the pin."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from localllm import moments
from localllm.errors import FileError, FormatError, UnsupportedError
from localllm.paths import Paths, ensure
from localllm.store.digest import full_digest
from localllm.store.durable import disk_error
from localllm.store.index import Model, Store
from localllm.store.lockfile import Lockfile
from localllm.store.offer import Offer, RemoteFile
from localllm.store.record import FileRecord, Record
from localllm.store.ref import Ref
from localllm.store.transfer.progress import CHECKING, Progress, Report
from localllm.store.transfer.settings import DEFAULT, Settings

#: Versions of GGUF that both engines read.
_VERSIONS = (2, 3)


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
    store.require_inside(offer.ref)
    before = store.find(offer.ref)
    if before is not None and _is_another(before, offer):
        raise FileError(
            f"another model has the name {offer.ref}: {before.path} ({before.size:,} bytes)",
            f"Delete it with: localllm rm {offer.ref}",
        )
    offer = with_known(offer, before)
    if offer.in_place and _is_sound(offer, report):
        offer = _told(offer, _open(offer.in_place[0]))
        files = _referenced(offer)
        store.record(offer.ref, record_of(offer, files))
    else:
        finals = store.paths(offer.ref, len(offer.files))
        files = _fetched(offer, finals, before, store, paths, report, settings)
        _forget_older(before, finals)
    if offer.source == "hub" and all(file.sha256 for file in files):
        Lockfile().pin(asked, offer, {file.name: (file.size, file.sha256) for file in files})
    model = store.find(offer.ref)
    if model is None:
        raise FileError(f"{store.path(offer.ref)} was removed while it was being pulled")
    return model


def with_known(offer: Offer, before: Model | None) -> Offer:
    """The offer with what the record of the same model says, where a source says nothing: a pinned
    revision is not asked for its licence again."""
    record = before.record or before.damaged if before else None
    if record is None or record.repository.lower() != offer.repository.lower():
        return offer
    return replace(
        offer,
        licence=offer.licence or record.licence,
        architecture=offer.architecture or record.architecture,
    )


def record_of(offer: Offer, files: Sequence[FileRecord]) -> Record:
    """The record of an offer whose files are there."""
    return Record(
        size=sum(file.size for file in files),
        sha256=files[0].sha256 if len(files) == 1 else "",
        source=f"{offer.source}: {offer.repository}",
        added=moments.iso(),
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
    if record is not None and record.repository:
        return record.repository.lower() != offer.repository.lower()
    if record is None and model.problem is not None:  # the record is damaged: the lock file knows
        pin = Lockfile().find(model.ref)
        if pin is not None and pin.repository.lower() == offer.repository.lower():
            return False
    if len(model.files) != len(offer.files):
        return True
    return not all(map(_is_same, model.files, offer.files))


def _is_same(path: Path, file: RemoteFile) -> bool:
    """Whether a file has the size and the hash that are offered, as far as they are told."""
    try:
        if file.size is None or path.stat().st_size != file.size:
            return False
        return file.sha256 is None or full_digest(path) == f"sha256:{file.sha256}"
    except FileNotFoundError:
        return False
    except OSError as e:
        raise disk_error("read", path, e) from e


def _require_model(offer: Offer, data: Sequence[Path], finals: Sequence[Path]) -> Offer:
    """The offer with what its files say. Raises `FormatError` for files that have come whole and
    are no model that anything can read. They lie at `data`, and will be called `finals`."""
    with _as_named(data, finals) as first:
        try:
            return _told(offer, _open(first))
        except FormatError as e:
            why = e.message.replace(f"{first.parent}{os.sep}", "")
            raise FormatError(
                f"what {offer.repository} delivers as {offer.ref} is damaged there: {why}",
                "Nothing was installed. Try another source, or tell its owner.",
            ) from e


@contextlib.contextmanager
def _as_named(data: Sequence[Path], finals: Sequence[Path]) -> Iterator[Path]:
    """The first of the files under its name to be, beside the others: parts of a split set find
    each other by their names. Where the system makes no links, a single file as it lies."""
    with contextlib.ExitStack() as ends:
        # Beside the data a hard link can be made, where links to other disks cannot.
        for parent, link in ((None, os.symlink), (data[0].parent, os.link)):
            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="check-", dir=parent))
            try:
                for path, final in zip(data, finals, strict=True):
                    link(path.absolute(), Path(folder, final.name))
            except OSError:
                continue
            yield Path(folder, finals[0].name)
            return
        yield data[0]


def _told(offer: Offer, facts: tuple[str, str]) -> Offer:
    """The offer with (architecture, quantization) where its source says nothing."""
    architecture, quantization = facts
    return replace(
        offer,
        architecture=offer.architecture or architecture,
        quantization=offer.quantization or quantization,
    )


def _open(path: Path) -> tuple[str, str]:
    """The architecture and the quantization of a file, "" where it does not say.

    Checks the whole header of a file, or of the split set that it begins. Raises `FormatError`
    and `FileError`; a model that is valid and runs nowhere here is none of them, but a version of
    the format that nothing reads is no valid model."""
    from localllm.store.inspect import GgufFile

    try:
        with GgufFile(path) as file:
            name = file.metadata.get("general.architecture")
            return name if isinstance(name, str) else "", file.quantization
    except UnsupportedError as e:
        if not _is_readable_version(path):
            raise FormatError(e.message, e.hint) from e
        return "", ""


def _is_readable_version(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as e:
        raise disk_error("read", path, e) from e
    return head[:4] == b"GGUF" and int.from_bytes(head[4:], "little") in _VERSIONS


def _forget_older(before: Model | None, files: Sequence[Path]) -> None:
    """Deletes files of an earlier revision that had another number of them."""
    if before is None or before.elsewhere:
        return
    for path in before.files:
        if path not in files:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_sound(offer: Offer, report: Report) -> bool:
    """Whether the files of another program have the content that their source names. Those of a
    source that names none, such as a path, are taken as they are."""
    done, n = 0, len(offer.files)
    for i, (file, path) in enumerate(zip(offer.files, offer.in_place, strict=True), 1):
        if file.sha256 is None or offer.source != "hub":
            continue
        size, before = file.size or 0, done

        def on_share(share: float, file: RemoteFile = file, i: int = i, before: int = before,
                     size: int = size) -> None:  # fmt: skip
            here = int(share * size)
            report(Progress(file.name, i, n, here, size, before + here, offer.size, 0.0, None,
                            CHECKING))  # fmt: skip

        try:
            is_right = full_digest(path, on_share) == f"sha256:{file.sha256}"
            done += size
        except FileError:
            is_right = False
        if not is_right:
            return False
    return True


def _referenced(offer: Offer) -> list[FileRecord]:
    files = []
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
    before: Model | None,
    store: Store,
    paths: Paths,
    report: Report,
    settings: Settings,
) -> list[FileRecord]:
    """Fetches the files. Their record is written first: whoever finds a file that has its name
    finds what it is, too."""
    from localllm.store.transfer.fetch import Fetched, Wanted, fetch_all

    known = _known(offer, before)
    wanted = list(map(Wanted, offer.files, finals, known))
    old = before.record or before.damaged if before else None
    noted = False

    def records(done: Sequence[Fetched]) -> list[FileRecord]:
        return [
            FileRecord(file.name, each.size, each.sha256)
            for file, each in zip(offer.files, done, strict=True)
        ]

    def accept(data: Sequence[Path], done: Sequence[Fetched]) -> None:
        nonlocal noted, offer
        offer = _require_model(offer, data, finals)
        noted = True
        store.record(offer.ref, record_of(offer, records(done)))

    try:
        done = fetch_all(
            wanted, paths.downloads, report, label=str(offer.ref), accept=accept, settings=settings
        )
    except BaseException:
        if noted and old is not None:
            with contextlib.suppress(FileError):
                store.record(offer.ref, old)
        raise
    return records(done)


def _known(offer: Offer, before: Model | None) -> list[str]:
    """The sha256 of each file on record, if its source still has the same revision."""
    record = before.record if before else None
    if (
        record is not None
        and offer.revision
        and record.revision == offer.revision
        and record.repository.lower() == offer.repository.lower()
        and [file.size for file in record.files] == [file.size for file in offer.files]
    ):
        return [file.sha256 for file in record.files]
    return [""] * len(offer.files)
