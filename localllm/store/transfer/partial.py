"""A file on its way: its data, its journal, and which chunks are missing, taken or here.

Threads that fetch take spans of chunks, feed them and give back what they did not finish. A chunk
is collected in memory, hashed, written, then noted, so data that was noted is there; the bytes of a
chunk that a connection left unfinished are kept, and the next one goes on behind them."""

from __future__ import annotations

import errno
import hashlib
import io
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


class Span:
    """Chunks [first, stop) that one thread fetches, in order."""

    def __init__(self, partial: Partial, turn: int, first: int, stop: int) -> None:
        self._partial, self.turn, self.next, self.stop = partial, turn, first, stop
        self.begun = bytearray()  # of chunk `next`

    @property
    def offset(self) -> int:
        """Of the first byte that is missing."""
        return self.next * self._partial.division.chunk_bytes + len(self.begun)

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
            n = min(length - len(self.begun), len(view))
            self.begun += view[:n]
            view = view[n:]
            if len(self.begun) == length:
                self._partial.store(self.turn, self.next, self.begun)
                self.next, self.begun = self.next + 1, bytearray()


class Sweep:
    """All bytes of the file in order, of which only missing chunks are taken: for servers that know
    no ranges."""

    def __init__(self, partial: Partial) -> None:
        self._partial, self._turn = partial, partial.turn
        self.offset = 0
        self._chunk = bytearray()

    def feed(self, block: bytes) -> None:
        """Takes the next bytes, no more than the file has. Raises as `Span.feed`."""
        division, view = self._partial.division, memoryview(block)
        while view:
            index, within = divmod(self.offset, division.chunk_bytes)
            n = min(division.length(index) - within, len(view))
            if self._partial.wants(index):
                self._chunk += view[:n]
                if len(self._chunk) == division.length(index):
                    self._partial.count(len(self._chunk))
                    self._partial.store(self._turn, index, self._chunk)
            view, self.offset = view[n:], self.offset + n
            if self.offset % division.chunk_bytes == 0:
                self._chunk = bytearray()


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
        self._begun: dict[int, bytearray] = {}
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
        """Whether no chunk was ever noted."""
        return not self._journal.hashes

    @property
    def etags(self) -> set[str]:
        """ETags under which this content was served."""
        return self._journal.etags

    def accept(self, etag: str) -> None:
        """Notes an ETag of this content."""
        self._journal.add_etag(etag)

    @property
    def n_begun(self) -> int:
        """Bytes of chunks that are not complete."""
        return sum(len(begun) for begun in list(self._begun.values()))

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
        fetch the last ones, the caller is not needed."""
        with self._changed:
            first = self._states.find(_MISSING)
            if first < 0:
                return None
            left = self._states.count(_MISSING)
            n = max(1, min(most // self.division.chunk_bytes, left // (2 * connections)))
            stop = first
            while stop < min(first + n, len(self._states)) and self._states[stop] == _MISSING:
                # Only the first chunk of a span can go on in its middle.
                if stop > first and stop in self._begun:
                    break
                self._states[stop] = _TAKEN
                stop += 1
            span = Span(self, self.turn, first, stop)
            span.begun = self._begun.pop(first, bytearray())
            return span

    def give_back(self, span: Span) -> None:
        """What was not fetched of a span is missing again."""
        with self._changed:
            if span.turn != self.turn:
                return
            if span.begun and span.next < span.stop:
                self._begun[span.next] = span.begun
            for index in range(span.next, span.stop):
                self._states[index] = _MISSING
            span.stop, span.begun = span.next, bytearray()  # a second call finds nothing
            self._changed.notify_all()

    def recall(self, drop_begun: bool) -> None:
        """Everything that was taken is missing again, and threads that still have it are refused.
        `drop_begun` forgets unfinished chunks too: the next bytes may be those of another
        content."""
        with self._changed:
            self.turn += 1
            for index, state in enumerate(self._states):
                if state == _TAKEN:
                    self._states[index] = _MISSING
            if drop_begun:
                self._begun.clear()

    def count(self, n_bytes: int) -> None:
        """Bytes came over the network."""
        with self._changed:
            self.received += n_bytes

    def wants(self, index: int) -> bool:
        """Whether a chunk is missing, for a stream that passes all of them."""
        return self._states[index] == _MISSING

    def store(self, turn: int, index: int, chunk: bytearray) -> None:
        """Writes a chunk that has come whole. Raises `OSError`, `LeaseLost`, `Recalled`."""
        sha256 = hashlib.sha256(chunk).hexdigest()
        same = self._comparing and self._journal.hashes.get(index) == sha256
        with self._changed:
            if turn != self.turn:
                raise Recalled
            if not self._may_write():
                raise LeaseLost
            if not same:
                self._write(index * self.division.chunk_bytes, chunk)
                self._journal.add(index, sha256)
                if self._comparing:
                    self.differing.add(index)
            if self._states[index] not in (_OLD, _HERE):
                self.n_here += len(chunk)
            self._states[index] = _HERE
            self._begun.pop(index, None)
            self._changed.notify_all()

    def _write(self, offset: int, chunk: bytearray) -> None:
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        view = memoryview(chunk)
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

    def _forget(self, index: int) -> None:
        if self._states[index] in (_OLD, _HERE):
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
                    if state not in (_OLD, _HERE):
                        self._changed.wait(0.1)
                        continue
                    noted = self._journal.hashes[index]
                length = self.division.length(index)
                file.seek(index * self.division.chunk_bytes)
                chunk = _read(file, length)
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


def _read(file: io.FileIO, length: int) -> bytes:
    pieces, left = [], length
    while left and (piece := file.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
