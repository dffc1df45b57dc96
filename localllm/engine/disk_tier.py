"""Pages on the disk, which outlive the process.

The engine's thread looks pages up and hands them over; a thread that writes and one that reads do
what may take long. Several processes may share a folder: a file is whole or not there, has the same
contents whoever wrote it, and one that another process deleted was never there.

Nothing is flushed to the device: pages survive the end of the process, however it comes, not that
of the system. What a power cut leaves does not match its checksums and is removed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localllm.engine import kv_files
from localllm.engine.kv_files import DamagedPageError, Shape
from localllm.engine.kv_pages import Page, PageIndex
from localllm.plain_text import size_text
from localllm.store.durable import TEMPORARY

#: Contents that wait for the disk; what comes beyond is written when its answer ends.
PENDING_BYTES = 256 << 20
#: What is over the cap is deleted down to this share of it.
KEPT_SHARE = 0.9
#: The folder is measured again after this share of the cap was written: others write, too.
MEASURED_SHARE = 1 / 16
#: After the disk was full, or a page could not be written, nothing is tried for so long.
RETRY_S = 30.0
_FILE_UNIT = 4096
#: The disk, or one page of it, refuses; others may be taken later. All else ends the tier.
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ODD_NAME = (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EEXIST)
_NAME = re.compile("[0-9a-f]{64}", re.ASCII)

log = logging.getLogger("localllm.engine")

#: Pages with the groups of them that are wanted.
Wanted = Sequence[tuple[Page, tuple[int, ...]]]


@dataclass(eq=False)
class Fetch:
    """Contents on their way. `contents` is complete, or cut short, when `is_done`."""

    contents: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    seconds: float = 0.0
    n_bytes: int = 0
    is_done: bool = False
    is_given_up: bool = False


class DiskTier:
    """root: of all models' pages, which share `cap_bytes`; folder: below it, of those of `shape`.
    `ready` is set when it is known what lies there."""

    def __init__(self, root: Path, folder: Path, shape: Shape, cap_bytes: int) -> None:
        self._root, self._folder, self._shape, self._cap = root, folder, shape, cap_bytes
        self._lock = threading.Lock()
        # Guarded by the lock, which is never held while the disk is waited for:
        self._index = PageIndex()
        self._pending: dict[bytes, tuple[bytes, ...]] = {}
        self._pending_bytes = 0
        self._has_groups: dict[bytes, tuple[bool, ...]] = {}
        # Of the thread that writes:
        self._used = 0
        self._since_measured = 0
        self._full_until_s = 0.0
        self.ready = threading.Event()
        self.stopped = ""  # why nothing is written any more
        self.n_written = self.n_read = self.n_damaged = self.n_evicted = self.n_skipped = 0
        self._writer = _Worker("kv-disk-write")
        self._reader = _Worker("kv-disk-read")
        self._writer.put(self._open)

    def __len__(self) -> int:
        with self._lock:
            return len(self._index)

    @property
    def used_bytes(self) -> int:
        """Of all models' pages, when they were last measured, and what was written since."""
        return self._used

    # ---- for the engine's thread ---------------------------------------------------------------

    def get(self, name: bytes) -> Page | None:
        with self._lock:
            return self._index.get(name)

    def children(self, parent: bytes, first_token: int) -> list[Page]:
        with self._lock:
            return self._index.children(parent, first_token)

    def holds(self, name: bytes, group: int) -> bool:
        with self._lock:
            return self._has_groups.get(name, ())[group : group + 1] == (True,)

    def pending(self, name: bytes, group: int) -> bytes | None:
        """Contents that are not on the disk yet."""
        with self._lock:
            found = self._pending.get(name)
        return found[group] or None if found else None

    def keep(self, page: Page, contents: Sequence[bytes]) -> None:
        """Writes a page as soon as it can be. contents [n_groups], empty for a group that is not
        there."""
        n_bytes = sum(map(len, contents))
        size = _allocated(self._shape.header_bytes + n_bytes)
        with self._lock:
            if page.name in self._index or self.stopped:
                return
            if self._pending_bytes + n_bytes > PENDING_BYTES or size > self._cap:
                if size > self._cap and not self.n_skipped:
                    log.warning(
                        "a page of the KV cache takes %s, all may take %s: less is kept in %s",
                        size_text(size), size_text(self._cap), self._folder,
                    )  # fmt: skip
                self.n_skipped += 1
                return
            self._pending[page.name] = tuple(contents)
            self._pending_bytes += n_bytes
            self._add(page, contents)
        self._writer.put(lambda: self._write(page))

    def touch(self, names: Sequence[bytes]) -> None:
        """Pages of one sequence, first to last, were used."""
        self._writer.put(lambda: self._touch(names))

    def fetch(self, wanted: Wanted, done: Callable[[Fetch], None]) -> Fetch:
        """Reads pages, in order, up to the first one that is not there. `done` is called from
        another thread."""
        fetch = Fetch()
        self._reader.put(lambda: self._fetch(fetch, wanted, done))
        return fetch

    def flush(self, timeout_s: float) -> bool:
        """Waits until all is written that was handed over before."""
        done = threading.Event()
        self._writer.put(done.set)
        return done.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what still waits, for so long at the most."""
        ends = time.monotonic() + timeout_s
        for worker in (self._writer, self._reader):
            worker.stop(max(0.0, ends - time.monotonic()))

    def _add(self, page: Page, sizes: Sequence[bytes] | Sequence[int]) -> None:
        self._index.add(page)
        self._has_groups[page.name] = tuple(bool(size) for size in sizes)

    def _remove(self, name: bytes) -> None:
        with self._lock:
            self._index.remove(name)
            self._has_groups.pop(name, None)

    # ---- the thread that writes ------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._make_folders()
            self._scan()
            self._measure()
        except OSError as e:
            self._stop(e)
        finally:
            self.ready.set()

    def _make_folders(self) -> None:
        self._root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._root, self._folder.parent, self._folder):
            kv_files.private_folder(folder)

    def _scan(self) -> None:
        found: list[tuple[Page, tuple[int, ...]]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.name.endswith(TEMPORARY):
                    kv_files.clear_temporary(path)
                    continue
                try:
                    if not _NAME.fullmatch(entry.name):
                        raise DamagedPageError("its name is not of a page")
                    header = kv_files.read_header(path, self._shape)
                    found.append((header.page, header.sizes))
                except DamagedPageError as e:
                    self._discard(path, e)
                except OSError:
                    continue  # gone, or not to be read now
        with self._lock:
            # A page without those before it is never looked for.
            for page, sizes in sorted(found, key=lambda each: each[0].depth):
                if not page.depth or self._index.get(page.parent) is not None:
                    self._add(page, sizes)
            orphans = [page for page, _ in found if page.name not in self._index]
        for page in orphans:
            self._path(page.name).unlink(missing_ok=True)

    def _write(self, page: Page) -> None:
        with self._lock:
            contents = self._pending[page.name]
        is_written = False
        try:
            if not self.stopped and time.monotonic() >= self._full_until_s:
                is_written = self._put(page, contents)
        except OSError as e:
            self._refused(page, e)
        finally:
            with self._lock:
                del self._pending[page.name]
                self._pending_bytes -= sum(map(len, contents))
            if not is_written:
                self.n_skipped += 1
                self._remove(page.name)

    def _put(self, page: Page, contents: Sequence[bytes]) -> bool:
        path = self._path(page.name)
        size = _allocated(self._shape.header_bytes + sum(map(len, contents)))
        if not self._make_room(size):
            return False
        number = f"{threading.get_ident()}.{os.getpid()}"
        temporary = path.with_name(f".{path.name[:16]}.{number}{TEMPORARY}")
        try:
            kv_files.write(path, temporary, self._shape, page, contents)
        except FileNotFoundError:  # somebody cleared it all away
            self._make_folders()
            kv_files.write(path, temporary, self._shape, page, contents)
        self.n_written += 1
        self._used += size
        self._since_measured += size
        with self._lock:
            shorter = self._index.shorter(page)
        for each in shorter:
            self._delete(each.name, size)
        return True

    def _refused(self, page: Page, error: OSError) -> None:
        """A page was not written."""
        if error.errno in _FULL:  # others fill the disk: what was not used for long goes for them
            if not self._full_until_s:
                log.warning("the disk is full: less of the KV cache is kept in %s", self._folder)
            self._full_until_s = time.monotonic() + RETRY_S
            files = self._measure()
            self._evict(files, int(self._used * KEPT_SHARE))
        elif error.errno in _ODD_NAME:
            if not self.n_skipped:
                log.warning("%s is in the way of a page: %s", self._path(page.name), error)
        else:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        if not self.stopped:
            self.stopped = error.strerror or str(error)
            log.warning(
                "the KV cache on the disk ends here, answers go on without it: %s: %s",
                self._folder, self.stopped,
            )  # fmt: skip

    def _touch(self, names: Sequence[bytes]) -> None:
        """The last page gets the oldest time, so that it goes first."""
        now = time.time_ns()
        for depth, name in enumerate(names):
            at = now - 1000 * depth
            with contextlib.suppress(OSError):
                os.utime(self._path(name), ns=(at, at), follow_symlinks=False)

    def _make_room(self, size: int) -> bool:
        if self._since_measured > self._cap * MEASURED_SHARE or self._used + size > self._cap:
            files = self._measure()
            if self._used + size > self._cap:
                self._evict(files, int(self._cap * KEPT_SHARE) - size)
        return self._used + size <= self._cap

    def _measure(self) -> list[tuple[int, int, Path, int]]:
        """All models' files: (when used, - pages before it, path, bytes)."""
        files = []
        for base, _, names in os.walk(self._root):
            for name in names:
                path = Path(base, name)
                with contextlib.suppress(OSError):
                    found = path.lstat()
                    files.append((found.st_mtime_ns, 0, path, _allocated(found.st_size)))
        self._used = sum(size for *_, size in files)
        self._since_measured = 0
        return files

    def _evict(self, files: list[tuple[int, int, Path, int]], target: int) -> None:
        """A page of this model counts as used when what follows it was."""
        used = {path: at for at, _, path, _ in files}
        with self._lock:
            mine = {self._path(page.name): page for page in self._index}
        for path in sorted((p for p in mine if p in used), key=lambda p: -used[p]):
            page, at = mine[path], used[path]
            while page.depth:
                parent = self._path(page.parent)
                if parent not in used or parent not in mine or used[parent] >= at:
                    break
                used[parent], page = at, mine[parent]
        order = [
            (used[path], -mine[path].depth if path in mine else 0, path, size)
            for _, _, path, size in files
        ]
        for _, _, path, size in sorted(order):
            if self._used <= target:
                break
            if path in mine:
                self._delete(mine[path].name, size)
            elif not path.name.endswith(TEMPORARY):
                with contextlib.suppress(OSError):
                    path.unlink()
                    self._used -= size
            self.n_evicted += 1

    def _delete(self, name: bytes, size: int) -> None:
        with self._lock:
            is_pending = name in self._pending
        if is_pending:  # its turn comes; then it is there again
            return
        self._remove(name)
        with contextlib.suppress(OSError):
            self._path(name).unlink()
            self._used -= size

    # ---- the thread that reads -------------------------------------------------------------------

    def _fetch(self, fetch: Fetch, wanted: Wanted, done: Callable[[Fetch], None]) -> None:
        began = time.perf_counter()
        try:
            for page, groups in wanted:
                if fetch.is_given_up or not self._fetch_page(fetch, page, groups):
                    break
        finally:
            fetch.seconds = time.perf_counter() - began
            fetch.is_done = True
            done(fetch)

    def _fetch_page(self, fetch: Fetch, page: Page, groups: tuple[int, ...]) -> bool:
        path = self._path(page.name)
        try:
            contents = kv_files.read_groups(path, self._shape, page, groups)
        except (DamagedPageError, OSError) as e:
            if isinstance(e, DamagedPageError):
                self._discard(path, e)
            self._remove(page.name)  # only now: from here on it may be written again
            return False
        self.n_read += 1
        fetch.contents[page.name] = contents
        fetch.n_bytes += sum(map(len, contents.values()))
        return True

    def _discard(self, path: Path, reason: DamagedPageError) -> None:
        self.n_damaged += 1
        if self.n_damaged == 1:
            log.warning(
                "%s is no good page of the KV cache and is removed, as are others like it: %s",
                path, reason,
            )  # fmt: skip
        with contextlib.suppress(OSError):
            path.unlink()

    def _path(self, name: bytes) -> Path:
        return self._folder / name.hex()


class _Worker:
    """Runs what it is given, in order, on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def stop(self, timeout_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                log.exception("a fault of the KV cache on the disk")


def _allocated(n_bytes: int) -> int:
    return -(-n_bytes // _FILE_UNIT) * _FILE_UNIT
