"""The one way in: files from servers to their names on this disk, verified.

A set of files appears together: each is fetched and verified in the download folder, and only when
all of them are right they get their names. Until then everything can be interrupted, by Ctrl-C,
kill -9 or a power cut, and the same call goes on with what is there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.errors import DownloadError, FileError, FormatError
from localllm.paths import ensure
from localllm.store.durable import TEMPORARY, disk_error, fsync_folder, replacing
from localllm.store.offer import RemoteFile
from localllm.store.transfer.bring import Bringer, Changed, Check, Ready, State
from localllm.store.transfer.http import Transport
from localllm.store.transfer.lease import Holder, Lease
from localllm.store.transfer.magic import require_gguf
from localllm.store.transfer.partial import LeaseLost
from localllm.store.transfer.partials import allocated, sweep
from localllm.store.transfer.patience import KEPT
from localllm.store.transfer.progress import Meter, Progress, Report
from localllm.store.transfer.settings import DEFAULT, MIB, Settings

_CHANGES = 3  # how often a file may change on its server while it is fetched


@dataclass(frozen=True)
class Wanted:
    """A file, and the name that it gets. known: the sha256 that it had when its server named the
    same ETag or date as now, of a file for which the source names none."""

    file: RemoteFile
    final: Path
    known: str = ""


@dataclass(frozen=True)
class Fetched:
    """A file that is in its place."""

    path: Path
    size: int  # bytes
    sha256: str
    etag: str  # strong one of the server, or empty


Accept = Callable[[Sequence[Path], Sequence[Fetched]], None]


def _accept(data: Sequence[Path], files: Sequence[Fetched]) -> None:
    """Whatever was fetched is right."""


def fetch(
    file: RemoteFile,
    final: Path,
    folder: Path,
    report: Report,
    *,
    label: str = "",
    check: Check = require_gguf,
    settings: Settings = DEFAULT,
) -> Fetched:
    """`fetch_all` for one file."""
    wanted = [Wanted(file, final)]
    return fetch_all(wanted, folder, report, label=label, check=check, settings=settings)[0]


def fetch_all(
    wanted: Sequence[Wanted],
    folder: Path,
    report: Report,
    *,
    label: str = "",
    check: Check = require_gguf,
    accept: Accept = _accept,
    settings: Settings = DEFAULT,
) -> list[Fetched]:
    """Brings files to their places, verified by sha256 where the source names one.

    A file that is in its place and has the sha256 that the source names is left there; another one
    is replaced. folder: for what is not complete. report: called in this thread, several times a
    second. label: what the user asked for, noted beside what is not complete. check: gets the name
    and the first bytes of each file, before it is written, and raises if it is not what was wanted.
    accept: gets where the verified files lie, and what they will be, before the first of them gets
    its name; if it raises `FormatError`, what was fetched is deleted and the old files stay.

    Raises `DownloadError`, `FileError`, `FormatError`, what `check`, `report` and `locate` raise;
    what has come is kept. KeyboardInterrupt too leaves a state that the next call goes on from."""
    sweep(ensure(folder))
    for each in wanted:
        ensure(each.final.parent)
    n_changes = 0
    while True:
        try:
            return _Fetch(wanted, folder, report, label, check, accept, settings).run()
        except LeaseLost:
            continue  # this process slept, and another one has taken over: wait for it
        except Changed as e:
            n_changes += 1
            if n_changes == _CHANGES:
                raise DownloadError(
                    f"{wanted[0].file.name} keeps changing on its server",
                    "Try again later, or another source.",
                ) from e


class _Fetch:
    """One attempt at a set of files, as long as its leases hold."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        folder: Path,
        report: Report,
        label: str,
        check: Check,
        accept: Accept,
        settings: Settings,
    ) -> None:
        self._accept = accept
        self._wanted, self._folder, self._report = wanted, folder, report
        self._label, self._check, self._settings = label, check, settings
        self._meter = Meter()
        self._leases: list[Lease] = []
        self._done: list[Ready] = []
        self._received = 0  # bytes from the network for files that are done
        self._last_state: State | None = None
        self._at = 0  # the file that is dealt with

    def run(self) -> list[Fetched]:
        with contextlib.ExitStack() as ends:
            transport = Transport(self._settings)
            ends.callback(transport.close)
            bringers = [self._bringer(transport, each) for each in self._wanted]
            keys: dict[str, int] = {}
            for self._at, bringer in enumerate(bringers):
                first = keys.setdefault(bringer.identify(), self._at)
                if first != self._at:
                    names = (
                        f"{self._wanted[first].file.name} and {self._wanted[self._at].file.name}"
                    )
                    raise DownloadError(
                        f"two files of one model are the same: {names}",
                        "The model is damaged at its source. Try another one.",
                    )

            def keep(lease: Lease) -> None:
                ends.callback(lease.release)
                self._leases.append(lease)

            # In one order everywhere: two sets that share files would wait for each other forever.
            for _, self._at in sorted(keys.items()):
                bringers[self._at].acquire(keep)
            for self._at, bringer in enumerate(bringers):
                self._done.append(bringer.bring())
                if self._last_state is not None:
                    self._received += self._last_state.received
                self._last_state = None
            return self._install()

    def _bringer(self, transport: Transport, wanted: Wanted) -> Bringer:
        return Bringer(
            transport,
            wanted.file,
            wanted.final,
            self._folder,
            self._settings,
            self._tell,
            self._tell_waiting,
            check=self._check,
            label=self._label,
            room=self._require_room,
            known=wanted.known,
        )

    def _tell(self, state: State) -> None:
        self._last_state = state
        speed = self._meter.bytes_per_s(self._received + state.received)
        sizes = [each.file.size for each in self._wanted]
        sizes[: len(self._done)] = [ready.size for ready in self._done]
        sizes[self._at] = state.size
        known = [size for size in sizes if size is not None]
        all_size = sum(known) if len(known) == len(sizes) else None
        all_bytes = sum(ready.size for ready in self._done) + state.n_bytes
        progress = Progress(
            name=self._wanted[self._at].file.name,
            index=self._at + 1,
            n_files=len(self._wanted),
            n_bytes=state.n_bytes,
            size=state.size,
            all_bytes=all_bytes,
            all_size=all_size,
            bytes_per_s=speed,
            eta_s=(all_size - all_bytes) / speed if all_size is not None and speed else None,
            state=state.state,
        )
        for lease in self._leases:
            lease.note(progress)
        self._report(progress)

    def _tell_waiting(self, holder: Holder) -> None:
        """What the process that holds the lease says of itself, as far as it makes sense."""
        said = holder.progress
        file = self._wanted[self._at].file
        self._report(
            Progress(
                name=file.name,
                index=self._at + 1,
                n_files=len(self._wanted),
                n_bytes=_number(said.get("n_bytes")) or 0,
                size=file.size or _number(said.get("size")),
                all_bytes=_number(said.get("all_bytes")) or 0,
                all_size=_number(said.get("all_size")),
                bytes_per_s=float(_number(said.get("bytes_per_s")) or 0),
                eta_s=_number(said.get("eta_s")),
                state=f"waiting for {holder.process}",
            )
        )

    def _require_room(self, data: Path, size: int) -> None:
        """Refuses before the first byte what cannot fit. (A quota may still refuse later.)"""
        needs = {self._folder: size - allocated(data)}
        final = self._wanted[self._at].final.parent
        if final.stat().st_dev != self._folder.stat().st_dev:
            needs[final] = size
        for folder, need in needs.items():
            free = shutil.disk_usage(folder).free
            if need > free:
                raise FileError(
                    f"not enough space in {folder} for "
                    f"{self._wanted[self._at].file.name}: it needs {need:,} bytes, "
                    f"{free:,} are free",
                    f"Free some space there, or move it with LOCALLLM_HOME. {KEPT}",
                )

    def _install(self) -> list[Fetched]:
        """Gives all files their names."""
        with contextlib.ExitStack() as ends:
            staged = [
                (ready, self._staged(ready, each.final, ends))
                for ready, each in zip(self._done, self._wanted, strict=True)
            ]
            files = [
                Fetched(each.final, ready.size, ready.sha256, ready.etag)
                for ready, each in zip(self._done, self._wanted, strict=True)
            ]
            self._require_accepted(
                [source or file.path for (_, source), file in zip(staged, files, strict=True)],
                files,
            )
            if not all(lease.confirm() for lease in self._leases):
                raise LeaseLost
            for (_, source), each in zip(staged, self._wanted, strict=True):
                if source is not None:
                    try:
                        source.replace(each.final)
                    except OSError as e:
                        raise disk_error("write", each.final, e, kept=KEPT) from e
        for parent in dict.fromkeys(each.final.parent for each in self._wanted):
            with _as_file_error("write", parent):
                fsync_folder(parent)
        for ready in self._done:
            with _as_file_error("delete", ready.files.data):
                ready.files.forget()
        return files

    def _require_accepted(self, data: Sequence[Path], files: Sequence[Fetched]) -> None:
        try:
            self._accept(data, files)
        except FormatError:
            for ready in self._done:
                if ready.data is not None:
                    with contextlib.suppress(OSError):
                        ready.files.forget()
            raise

    def _staged(self, ready: Ready, final: Path, ends: contextlib.ExitStack) -> Path | None:
        """The file on the disk of its final name: itself, or a copy that is as right."""
        data = ready.data
        if data is None or data.stat().st_dev == final.parent.stat().st_dev:
            return data
        copy = final.with_name(f".{final.name}.{os.getpid()}{TEMPORARY}")
        ends.callback(copy.unlink, missing_ok=True)
        hashed, n = hashlib.sha256(), 0
        with _as_file_error("write", copy), data.open("rb") as source, replacing(copy) as file:
            while block := source.read(MIB):
                file.write(block)
                hashed.update(block)
                n += len(block)
                self._report(
                    Progress(
                        final.name, 1, len(self._wanted), n, ready.size, n, ready.size, 0.0, None,
                        f"copying to {final.parent}",
                    )
                )  # fmt: skip
        if hashed.hexdigest() != ready.sha256:
            raise FileError(f"{data} changed while it was copied to {final.parent}")
        return copy


@contextlib.contextmanager
def _as_file_error(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise disk_error(action, path, e, kept=KEPT) from e


def _number(value: Any) -> Any:
    return value if type(value) in (int, float) else None
