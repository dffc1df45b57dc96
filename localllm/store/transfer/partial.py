"""A file on its way: its data, its journal, and which chunks are missing, taken or here.

Threads that fetch take spans of chunks, feed them and give back what they did not finish. A chunk
is collected in memory, hashed, written, then noted, so data that was noted is there. Of a chunk
that has come in part, the bytes are written and noted now and then and at the end, so the next
connection goes on behind them, in this process or in another."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from localllm.store.transfer.journal import Division, Journal

_MISSING, _TAKEN, _OLD, _HERE = range(4)  # _OLD: noted before this process, not read yet
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class LeaseLost(Exception):
    """Another process has taken this file over: nothing more may be written."""


class Recalled(Exception):
    """What a thread had taken was taken from it: it was too late."""


class Begun:
    """The first bytes of a chunk. One thread adds to it; `written` of them are on the disk, and
    `hashed` is the state of their sha256."""

    def __init__(self, index: int, data: bytes = b"") -> None:
        """data: bytes that are on the disk already."""
        self.index, self.data = index, bytearray(data)
        self.written, self.hashed = len(data), hashlib.sha256(data)

    def copy(self) -> Begun:
        """For another thread to add to."""
        other = Begun(self.index)
        other.data += bytes(self.data)
        other.written, other.hashed = self.written, self.hashed.copy()
        return other


class Span:
    """Chunks [first, stop) that one thread fetches, in order."""

    def __init__(self, partial: Partial, turn: int, begun: Begun, stop: int) -> None:
        self._partial, self.turn, self.begun, self.stop = partial, turn, begun, stop

    @property
    def next(self) -> int:
        """The chunk that is not complete."""
        return self.begun.index

    @property
    def offset(self) -> int:
        """Of the first byte that is missing."""
        return self.next * self._partial.division.chunk_bytes + len(self.begun.data)

    @property
    def end(self) -> int:
        """Of the byte behind the last one."""
        division = self._partial.division
        return min(self.stop * division.chunk_bytes, division.size)

    def feed(self, block: bytes) -> None:
        """Takes bytes from `offset` on, no more than up to `end`. Raises `OSError`, `LeaseLost`,
        and `Recalled`."""
        view = memoryview(block)
        self._partial.count(len(view))
        while view:
            length = self._partial.division.length(self.next)
            n = min(length - len(self.begun.data), len(view))
            self.begun.data += view[:n]
            view = view[n:]
            if len(self.begun.data) == length:
                self._partial.store(self.turn, self.begun)
                self.begun = Begun(self.next + 1)


class Sweep:
    """All bytes of the file in order, of which only missing chunks are taken: for servers that know
    no ranges."""

    def __init__(self, partial: Partial) -> None:
        self._partial, self.turn = partial, partial.turn
        self.offset = 0
        self.begun = Begun(0)

    def feed(self, block: bytes) -> None:
        """Takes the next bytes, no more than the file has. Raises as `Span.feed`."""
        division, view = self._partial.division, memoryview(block)
        while view:
            index, within = divmod(self.offset, division.chunk_bytes)
            n = min(division.length(index) - within, len(view))
            if self._partial.wants(index):
                self.begun.data += view[:n]
                if len(self.begun.data) == division.length(index):
                    self._partial.count(len(self.begun.data))
                    self._partial.store(self.turn, self.begun)
            view, self.offset = view[n:], self.offset + n
            if self.offset % division.chunk_bytes == 0:
                self.begun = Begun(index + 1)


class Partial:
    """The state of one file. Methods may be called from any thread."""

    def __init__(
        self,
        data: Path,
        journal: Path,
        division: Division,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Goes on with what is there. `may_write` is asked before each write. Raises `OSError`."""
        self.data, self._may_write = data, may_write
        self._journal = Journal(journal, division)
        self.division = self._journal.division
        self._changed = threading.Condition()
        self._states = bytearray(self.division.n_chunks)
        self._begun: dict[int, Begun] = {}  # that no thread adds to
        self._spans: set[Span | Sweep] = set()  # those of the threads
        self._comparing = False
        self.differing: set[int] = set()  # chunks that a second download found to be different
        self.turn = 0
        self.received = 0  # bytes from the network, those that were thrown away too
        self.n_here = 0  # bytes of chunks that are here
        try:
            self._descriptor = os.open(data, FLAGS, 0o666)
        except BaseException:
            self._journal.close()
            raise
        if not self._journal.resumed:
            os.ftruncate(self._descriptor, 0)
        on_disk = os.fstat(self._descriptor).st_size
        for index in self._journal.hashes:
            start = index * self.division.chunk_bytes
            if start + self.division.length(index) <= on_disk:
                self._states[index] = _OLD
                self.n_here += self.division.length(index)

    def close(self) -> None:
        """Late threads are refused: their descriptors may be another file's by then."""
        with self._changed:
            self.turn += 1
            os.close(self._descriptor)
            self._journal.close()

    @property
    def empty(self) -> bool:
        """Whether nothing that came is noted."""
        return not self._journal.hashes and not self._journal.begun

    @property
    def etags(self) -> set[str]:
        """ETags under which this content was served."""
        return self._journal.etags

    def accept(self, etag: str) -> None:
        """Notes an ETag of this content."""
        self._journal.add_etag(etag)

    @property
    def n_come(self) -> int:
        """Bytes that are here, those of chunks that are not complete too."""
        with self._changed:
            lengths = {index: n for index, (n, _) in self._journal.begun.items()}
            lengths |= {index: len(begun.data) for index, begun in self._begun.items()}
            for begun in (span.begun for span in self._spans):
                lengths[begun.index] = max(len(begun.data), lengths.get(begun.index, 0))
            lengths.pop(len(self._states), None)  # of a span that has ended
            return self.n_here + sum(n for i, n in lengths.items() if not self._has(i))

    def missing(self) -> bool:
        """Whether there is a chunk that nobody fetches."""
        return _MISSING in self._states

    def witnesses(self, most: int) -> dict[int, str]:
        """sha256 of some chunks that are here, by index: to tell whether a server has the same
        file."""
        here = [i for i, state in enumerate(self._states) if state in (_OLD, _HERE)]
        chosen = here if len(here) <= most else [here[len(here) * i // most] for i in range(most)]
        return {index: self._journal.hashes[index] for index in chosen}

    def take(self, most: int, connections: int) -> Span | None:
        """The first missing chunks that follow each other: at most `most` bytes, and less near the
        end, so that all connections end at the same time. None if none is missing; while others
        fetch the last ones, the caller is not needed. Raises `OSError`."""
        with self._changed:
            first = self._states.find(_MISSING)
            if first < 0:
                return None
            left = self._states.count(_MISSING)
            n = max(1, min(most // self.division.chunk_bytes, left // (2 * connections)))
            stop = first
            while stop < min(first + n, len(self._states)) and self._states[stop] == _MISSING:
                # Only the first chunk of a span can go on in its middle.
                if stop > first and (stop in self._begun or stop in self._journal.begun):
                    break
                stop += 1
            begun = self._begun.pop(first, None) or self._read_begun(first)
            self._states[first:stop] = bytes([_TAKEN]) * (stop - first)
            span = Span(self, self.turn, begun, stop)
            self._spans.add(span)
            return span

    def sweep(self) -> Sweep:
        """A pass over the whole file."""
        with self._changed:
            sweep = Sweep(self)
            self._spans.add(sweep)
            return sweep

    def _read_begun(self, index: int) -> Begun:
        """What an earlier process left of a chunk, if the disk still has it."""
        n, sha256 = self._journal.begun.get(index, (0, ""))
        if n:
            os.lseek(self._descriptor, index * self.division.chunk_bytes, os.SEEK_SET)
            begun = Begun(index, _read(lambda left: os.read(self._descriptor, left), n))
            if begun.hashed.hexdigest() == sha256:
                return begun
            self._journal.drop_begun(index)
        return Begun(index)

    def give_back(self, span: Span) -> None:
        """What was not fetched of a span is missing again."""
        with self._changed:
            if span.turn != self.turn:
                return
            self._spans.discard(span)
            if span.next < span.stop and self._is_begun(span.begun):
                self._begun[span.next] = span.begun
            for index in range(span.next, span.stop):
                self._states[index] = _MISSING
            span.stop, span.begun = span.next, Begun(span.next)  # a second call finds nothing
            self._changed.notify_all()

    def recall(self) -> None:
        """Everything that was taken is missing again, and threads that still have it are
        refused."""
        with self._changed:
            self.turn += 1
            for span in self._spans:
                begun = span.begun.copy()  # its thread may add to it until it is refused
                if self._is_begun(begun):
                    self._begun.setdefault(begun.index, begun)
            self._spans.clear()
            for index, state in enumerate(self._states):
                if state == _TAKEN:
                    self._states[index] = _MISSING

    def _is_begun(self, begun: Begun) -> bool:
        """Not so while a chunk that has come whole waits to be stored."""
        return 0 < len(begun.data) < self.division.length(begun.index)

    def keep_begun(self, least: int = 1) -> None:
        """Writes and notes what has come of chunks that are not complete, where it has grown by
        `least` bytes. Raises `OSError`, `LeaseLost`."""
        with self._changed:
            if self._comparing:  # what is there may be right
                return
            for each in [*(span.begun for span in self._spans), *self._begun.values()]:
                grown = bytes(each.data[each.written :])
                if self._is_begun(each) and len(grown) >= least:
                    self._keep(each, grown)

    def _keep(self, begun: Begun, grown: bytes) -> None:
        if not self._may_write():
            raise LeaseLost
        self._write(begun.index * self.division.chunk_bytes + begun.written, grown)
        begun.hashed.update(grown)
        begun.written += len(grown)
        self._journal.add_begun(begun.index, begun.written, begun.hashed.hexdigest())

    def drop_begun(self) -> None:
        """Chunks that are not complete are begun anew: the next bytes may be those of another
        content. Raises `OSError`."""
        with self._changed:
            self._begun.clear()
            for index in list(self._journal.begun):
                self._journal.drop_begun(index)

    def count(self, n_bytes: int) -> None:
        """Bytes came over the network."""
        with self._changed:
            self.received += n_bytes

    def wants(self, index: int) -> bool:
        """Whether a chunk is missing, for a stream that passes all of them."""
        return self._states[index] == _MISSING

    def store(self, turn: int, begun: Begun) -> None:
        """Writes a chunk that has come whole. Raises `OSError`, `LeaseLost`, `Recalled`."""
        index, chunk = begun.index, begun.data
        sha256 = hashlib.sha256(chunk).hexdigest()
        same = self._comparing and self._journal.hashes.get(index) == sha256
        with self._changed:
            if turn != self.turn:
                raise Recalled
            if not self._may_write():
                raise LeaseLost
            if not same:
                start = index * self.division.chunk_bytes + begun.written
                self._write(start, memoryview(chunk)[begun.written :])
                self._journal.add(index, sha256)
                if self._comparing:
                    self.differing.add(index)
            if not self._has(index):
                self.n_here += len(chunk)
            self._states[index] = _HERE
            self._begun.pop(index, None)
            self._changed.notify_all()

    def _write(self, offset: int, data: bytes | memoryview) -> None:
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def compare_again(self, indices: Iterable[int]) -> None:
        """Chunks are to be fetched a second time: what differs is written, and its index noted."""
        with self._changed:
            self._comparing = True
            self.differing = set()
            for index in indices:
                self._forget(index)
            self._changed.notify_all()

    def forget(self, indices: Iterable[int]) -> None:
        """Chunks that are here are missing again."""
        with self._changed:
            for index in indices:
                self._forget(index)
            self._changed.notify_all()

    def _has(self, index: int) -> bool:
        return self._states[index] in (_OLD, _HERE)

    def _forget(self, index: int) -> None:
        if self._has(index):
            self.n_here -= self.division.length(index)
            self._states[index] = _MISSING

    def whole_sha256(self, stopped: Callable[[], bool], check_all: bool) -> str | None:
        """The sha256 of the file, taken in order behind the chunks as they come.

        Chunks of an earlier process are checked against the journal on the way, with `check_all`
        all of them; one that the disk lost or changed is missing again. None if `stopped()`. Raises
        `OSError`."""
        whole = hashlib.sha256()
        for chunk in self._in_order(stopped, check_all):
            whole.update(chunk)
        return None if stopped() else whole.hexdigest()

    def _in_order(self, stopped: Callable[[], bool], check_all: bool) -> Iterator[bytes]:
        with self.data.open("rb", buffering=0) as file:
            index = 0
            while index < self.division.n_chunks and not stopped():
                with self._changed:
                    state = self._states[index]
                    if not self._has(index):
                        self._changed.wait(0.1)
                        continue
                    noted = self._journal.hashes[index]
                length = self.division.length(index)
                file.seek(index * self.division.chunk_bytes)
                chunk = _read(file.read, length)
                if state == _OLD or check_all:
                    if hashlib.sha256(chunk).hexdigest() != noted:
                        with self._changed:
                            self._forget(index)
                        continue
                    with self._changed:
                        self._states[index] = _HERE
                elif len(chunk) != length:
                    raise OSError(
                        errno.EIO, f"only {len(chunk)} of {length} bytes can be read again"
                    )
                yield chunk
                index += 1

    def flush(self) -> None:
        """Everything to the disk. Raises `OSError`."""
        os.fsync(self._descriptor)


def _read(read: Callable[[int], bytes | None], length: int) -> bytes:
    pieces, left = [], length
    while left and (piece := read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
