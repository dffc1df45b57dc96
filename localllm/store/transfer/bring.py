"""One file: found, leased, fetched, verified. What is left to do is to give it its name."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import DownloadError
from localllm.store.digest import sha256_of
from localllm.store.durable import disk_error
from localllm.store.identifiers import SHA256
from localllm.store.offer import RemoteFile
from localllm.store.transfer.http import Fault, Transport, public_address
from localllm.store.transfer.journal import Division
from localllm.store.transfer.lease import Holder, Lease, acquire
from localllm.store.transfer.look import Remote, admit, look
from localllm.store.transfer.partial import LeaseLost, Partial
from localllm.store.transfer.partials import Files
from localllm.store.transfer.patience import KEPT, Patience
from localllm.store.transfer.progress import CHECKING, COMPARING, DOWNLOADING
from localllm.store.transfer.ranges import Session
from localllm.store.transfer.settings import Settings
from localllm.store.transfer.stream import read_whole

_COMPARISONS = 3  # how often what does not add up is fetched again

Check = Callable[[str, bytes], None]  # (name, first bytes): raises if it is not what was wanted


@dataclass(frozen=True)
class State:
    """A moment of one file. received: bytes from the network, for the speed."""

    n_bytes: int
    size: int | None
    received: int
    state: str


@dataclass(frozen=True)
class Ready:
    """A file that is whole and verified. lease is held; data is None if `final` was right
    already."""

    files: Files
    data: Path | None
    size: int
    sha256: str
    etag: str
    lease: Lease


class Changed(Exception):
    """The server has another file than the one that was begun: begin with that one."""


class Bringer:
    """Brings one file into the download folder."""

    def __init__(
        self,
        transport: Transport,
        file: RemoteFile,
        final: Path,
        folder: Path,
        settings: Settings,
        tell: Callable[[State], None],
        waits: Callable[[Holder], None],
        *,
        check: Check,
        label: str,
        room: Callable[[Path, int], None],
        known: str = "",
    ) -> None:
        """tell, waits: called in this thread, over and over; may raise. room: raises if the disk
        has no room for so many bytes (all of the file) at a path. known: the sha256 of `final` if
        the server has the same as when it was fetched."""
        self._transport, self._file, self._final, self._folder = transport, file, final, folder
        self._settings, self._tell, self._waits = settings, tell, waits
        self._check, self._label, self._room, self._known = check, label, room, known
        self._files: Files  # from `identify` on
        self._lease: Lease  # from `acquire` on
        self._resumable = self._finished = False
        self._remote: Remote | None = None
        self._etag: str | None = None  # of the content, as the source says
        self._received = 0
        self._patience = Patience(settings, file.name, lambda: self._received)
        self._ignored_ranges = 0
        if file.sha256 is not None and not SHA256.fullmatch(file.sha256):
            raise DownloadError(f"{file.name}: {file.sha256[:80]!a} is no sha256 of 64 hex digits")

    def identify(self) -> str:
        """The key of the file; the server is asked where its source says too little. Raises
        `DownloadError`, `FormatError`."""
        key, self._resumable = self._identify()
        self._files = Files(self._folder, key)
        return key

    def acquire(self, keep: Callable[[Lease], None]) -> None:
        """Waits for the lease of the file, once it is identified. `keep` gets the lease, which the
        caller releases. Raises `FileError`."""
        before = _stamp(self._final)
        waited = False

        def on_wait(holder: Holder) -> None:
            nonlocal waited
            waited = True
            self._waits(holder)

        try:
            self._lease = acquire(self._folder, self._files.key, self._settings, on_wait)
        except OSError as e:
            raise disk_error("write to", self._files.data, e, kept=KEPT) from e
        keep(self._lease)
        self._finished = waited and _stamp(self._final) != before  # by the one that was waited for

    def bring(self) -> Ready:
        """The file, verified, once its lease is here. Raises `DownloadError`, `FileError`,
        `FormatError`, `LeaseLost`."""
        files, lease = self._files, self._lease
        try:
            if ready := self._already(files, lease, self._finished):
                return ready
            address = public_address(self._remote.route.location.url) if self._remote else ""
            files.write_note(self._file.name, self._label, address, self._size())
            if self._size() is None or not self._resumable:
                return self._bring_in_one(files, lease)
            return self._bring_parts(files, lease)
        except OSError as e:
            path = Path(e.filename) if isinstance(e.filename, str) else files.data
            raise disk_error("write to", path, e, kept=KEPT) from e

    def _size(self) -> int | None:
        return self._remote.size if self._remote else self._file.size

    def _identify(self) -> tuple[str, bool]:
        """(key of the file, whether a later process may go on with it)."""
        if self._file.sha256 is not None:
            if self._file.size is None:
                self._look()
            return self._file.sha256, True
        return self._key_of(self._look())

    def _key_of(self, remote: Remote) -> tuple[str, bool]:
        identity = remote.identity(self._etag)
        text = identity or f"address {public_address(remote.route.location.url)}"
        return hashlib.sha256(text.encode()).hexdigest(), identity is not None

    def _look(self) -> Remote:
        """Asks the source and the server until there is an answer."""
        while True:
            try:
                location = self._file.locate()
                remote = look(self._transport, location, self._file.size)
            except Fault as fault:
                self._pause(fault, State(0, self._size(), self._received, ""))
                continue
            self._check(self._file.name, remote.head)
            self._remote, self._etag = remote, location.etag
            return remote

    def _pause(self, fault: Fault, state: State) -> None:
        until = time.monotonic() + self._patience.delay(fault)
        while (left := until - time.monotonic()) > 0:
            text = f"retrying in {math.ceil(left)} s: {fault}"
            self._tell(State(state.n_bytes, state.size, state.received, text))
            time.sleep(min(left, self._settings.poll_s))

    def _already(self, files: Files, lease: Lease, finished: bool) -> Ready | None:
        """The file under its final name, if it is there and right."""
        wanted = self._file.sha256 or self._known
        stamp = _stamp(self._final)
        if stamp is None or not (finished or wanted) or self._size() not in (None, stamp[0]):
            return None
        checked = 0

        def add(n_bytes: int) -> None:
            nonlocal checked
            checked += n_bytes
            self._tell(State(checked, stamp[0], self._received, CHECKING))

        sha256, n = sha256_of(self._final, add)
        if wanted and sha256 != wanted:
            return None
        files.forget()
        return Ready(files, None, n, sha256, self._remote.etag if self._remote else "", lease)

    def _bring_in_one(self, files: Files, lease: Lease) -> Ready:
        """Where only the end of the stream tells the size, or nothing names the content, a broken
        stream is begun anew."""
        files.journal.unlink(missing_ok=True)
        while True:
            remote = self._remote or self._look()
            if remote.size is not None:
                self._room(files.data, remote.size)

            def on_bytes(n: int, size: int | None = remote.size) -> None:
                self._tell(State(n, size, n, DOWNLOADING))

            try:
                wanted = self._file.sha256
                size, sha256 = read_whole(
                    self._transport, remote, files.data, lease.held, on_bytes, wanted
                )
                return Ready(files, files.data, size, sha256, remote.etag, lease)
            except Fault as fault:
                self._remote = None
                self._pause(fault, State(0, remote.size, 0, ""))

    def _bring_parts(self, files: Files, lease: Lease) -> Ready:
        size = self._size()
        if not size:
            raise DownloadError(f"{self._file.name} is empty, says its source")
        self._room(files.data, size)
        division = Division(files.key, size, self._settings.chunk_for(size))
        partial = Partial(files.data, files.journal, division, lease.held)
        with contextlib.closing(partial):
            try:
                sha256 = self._verified(partial, lease, files)
                partial.flush()
            except BaseException:
                if partial.empty and lease.confirm():
                    files.forget()
                raise
        etag = self._remote.etag if self._remote else ""
        return Ready(files, files.data, size, sha256, etag, lease)

    def _verified(self, partial: Partial, lease: Lease, files: Files) -> str:
        """Fetches what is missing until the whole is right."""
        wanted = self._file.sha256
        sha256 = self._fill(partial, lease, check_all=False)
        if wanted in (None, sha256):
            return sha256
        # What the disk changed is found without the network.
        sha256 = self._fill(partial, lease, check_all=True)
        suspects = set(range(partial.division.n_chunks))
        for _ in range(_COMPARISONS):
            if sha256 == wanted or not suspects:
                break
            partial.compare_again(suspects)
            sha256 = self._fill(partial, lease, check_all=True, state=COMPARING)
            suspects = set(partial.differing)
        if sha256 == wanted:
            return sha256
        host = self._remote.host if self._remote else "the server"
        if suspects:
            raise DownloadError(
                f"{self._file.name} comes damaged from {host}: expected sha256 {wanted}, "
                f"got {sha256}",
                f"{len(suspects)} parts differ each time. Try another network. {KEPT}",
            )
        files.journal.unlink(missing_ok=True)  # its chunks are those of another file
        raise DownloadError(
            f"{host} has another {self._file.name} than its source says: expected sha256 {wanted}, "
            f"got {sha256} twice",
            "Nothing was installed. Pull again later, or from another source.",
        )

    def _fill(
        self,
        partial: Partial,
        lease: Lease,
        *,
        check_all: bool,
        state: str = DOWNLOADING,
    ) -> str:
        """Fetches what is missing, and returns the sha256 of the whole, which is taken behind
        it."""
        size = partial.division.size
        hashing = _Hashing(partial, check_all)
        session: Session | None = None

        def tick() -> None:
            self._received = partial.received
            now = session.state if session else ""
            here = partial.n_come
            if not now:
                now = state if partial.missing() or here < size else CHECKING
            self._tell(State(here, size, self._received, now))
            if not lease.held():
                raise LeaseLost

        try:
            if partial.missing():  # a short phase is told of, too
                self._tell(State(partial.n_come, size, partial.received, state))
            while not hashing.over.is_set():
                if not partial.missing():
                    tick()
                    hashing.over.wait(self._settings.poll_s)
                    continue
                try:
                    session = self._session(partial)
                    session.run(tick)
                except Fault as fault:
                    self._ignored_ranges += bool(session and session.ignored_range)
                    self._received = partial.received
                    self._remote = None
                    if lease.confirm():
                        self._pause(fault, State(partial.n_come, size, self._received, ""))
                finally:
                    session = None
            tick()
            return hashing.result()
        finally:
            hashing.end()

    def _session(self, partial: Partial) -> Session:
        remote = self._remote or self._look()
        hashed = self._file.sha256 is not None
        if not hashed and self._key_of(remote)[0] != partial.division.key:
            raise Changed
        if remote.size != partial.division.size:
            raise Fault(f"{remote.host} has {remote.size} bytes now", look=True, grave=True)
        if hashed:
            admit(self._transport, remote, partial)
        return Session(
            self._transport,
            remote,
            partial,
            self._settings,
            self._file.name,
            ranged=remote.ranged and self._ignored_ranges < 2,
            hashed=hashed,
        )


class _Hashing:
    """The thread that takes the sha256 of the whole behind the chunks that come."""

    def __init__(self, partial: Partial, check_all: bool) -> None:
        self._partial, self._check_all = partial, check_all
        self._stop = threading.Event()
        self.over = threading.Event()
        self._sha256: str | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="hashing", daemon=True)
        self._thread.start()

    def result(self) -> str:
        """Once it is over. Raises `FileError` if the disk did not give back what it took."""
        if isinstance(self._error, OSError):
            raise disk_error("read", self._partial.data, self._error) from self._error
        if self._error is not None:
            raise self._error
        assert self._sha256 is not None  # `end` was not called before
        return self._sha256

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._sha256 = self._partial.whole_sha256(self._stop.is_set, self._check_all)
        except Exception as e:
            self._error = e
        finally:
            self.over.set()


def _stamp(path: Path) -> tuple[int, int] | None:
    """(size, time of change) of a regular file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_size, stat.st_mtime_ns) if path.is_file() else None
