"""The journal of a download: which chunks are on the disk, and the hash of each.

It is a text file that only grows. Its first line says which file it is of and how it is divided;
each further line is `<index> <sha256>` of a chunk that was written before, or `begun <index> <n>
<sha256>` of its first n bytes (0: of none); of two lines on one chunk the later one counts. A line
that a crash tore is ignored, and a hash that the disk does not bear out costs that chunk: nothing
in the journal is believed without reading the data again. Lines `etag <value>` name ETags under
which the content was served."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from localllm.store.transfer.settings import MIB

_HEAD = re.compile(rb"localllm-journal 1 ([0-9a-f]{64}) (\d{1,18}) (\d{1,12})")
_CHUNK = re.compile(rb"(\d{1,12}) ([0-9a-f]{64})")
_BEGUN = re.compile(rb"begun (\d{1,12}) (\d{1,12}) ([0-9a-f]{64})")
_ETAG = re.compile(rb"etag ([!-~]{1,2048})")
_MAX_BYTES = 64 * MIB  # far above what any journal needs
_MAX_BEGUN = 32 * MIB  # of a journal that takes no more lines on chunks that are not complete
MAX_CHUNKS = 1 << 22
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FLAGS |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True)
class Division:
    """key: 64 hex digits of the file's identity; size and chunk_bytes in bytes."""

    key: str
    size: int
    chunk_bytes: int

    @property
    def n_chunks(self) -> int:
        return -(-self.size // self.chunk_bytes)

    def length(self, index: int) -> int:
        """Bytes of a chunk: the last one is shorter."""
        return min(self.chunk_bytes, self.size - index * self.chunk_bytes)


@dataclass(frozen=True)
class Contents:
    """What a journal says. hashes: sha256 of a chunk by its index; begun: (number, sha256) of the
    first bytes of chunks that are not complete."""

    division: Division
    hashes: dict[int, str]
    begun: dict[int, tuple[int, str]]
    etags: set[str]

    @property
    def n_bytes(self) -> int:
        """Bytes that are named."""
        whole = sum(self.division.length(index) for index in self.hashes)
        return whole + sum(n for n, _ in self.begun.values())


class Journal:
    """An open journal. `hashes` has the sha256 of each chunk that was written, by its index;
    `begun` what was written of others."""

    def __init__(self, path: Path, division: Division) -> None:
        """Reads what is there if it is of the same file, else begins anew. Raises `OSError`."""
        found = load(path)
        if found and (found.division.key, found.division.size) != (division.key, division.size):
            found = None
        if found is None:
            path.unlink(missing_ok=True)
        self.resumed = found is not None
        contents = found or Contents(division, {}, {}, set())
        self.division, self.hashes, self.begun = contents.division, contents.hashes, contents.begun
        self.etags = contents.etags
        self._descriptor = os.open(path, _FLAGS, 0o666)
        try:
            if found is None:
                head = f"{division.key} {division.size} {division.chunk_bytes}"
                self._append(f"localllm-journal 1 {head}\n".encode())
                os.fsync(self._descriptor)
            elif not _ends_line(path):
                self._append(b"\n")
        except BaseException:
            os.close(self._descriptor)
            raise

    def add(self, index: int, sha256: str) -> None:
        """Notes a chunk that is on the disk. Raises `OSError`."""
        self._append(f"{index} {sha256}\n".encode())
        self.hashes[index] = sha256
        self.begun.pop(index, None)

    def add_begun(self, index: int, n_bytes: int, sha256: str) -> None:
        """Notes the first bytes of a chunk. Raises `OSError`."""
        if os.fstat(self._descriptor).st_size < _MAX_BEGUN:
            self._append(f"begun {index} {n_bytes} {sha256}\n".encode())
            self.hashes.pop(index, None)
            self.begun[index] = (n_bytes, sha256)

    def drop_begun(self, index: int) -> None:
        """The first bytes of a chunk are no longer of use. Raises `OSError`."""
        self._append(f"begun {index} 0 {hashlib.sha256().hexdigest()}\n".encode())
        self.begun.pop(index, None)

    def add_etag(self, etag: str) -> None:
        """Notes that the content is served under an ETag. Raises `OSError`."""
        if etag and etag not in self.etags:
            self._append(f"etag {quote(etag)}\n".encode())
            self.etags.add(etag)

    def close(self) -> None:
        """Nothing was held back: every line is with the system already."""
        os.close(self._descriptor)

    def _append(self, line: bytes) -> None:
        """One call for one line: another process that appends cannot tear it."""
        written = os.write(self._descriptor, line)
        if written < len(line):  # a full disk takes a part; the next call says so
            os.write(self._descriptor, line[written:])


def load(path: Path) -> Contents | None:
    """What a journal says; None if it is missing, damaged or too large to be one."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line end is torn
    except OSError:
        return None
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None or not int(head[2]) or not int(head[3]):
        return None
    division = Division(head[1].decode(), int(head[2]), int(head[3]))
    if division.n_chunks > MAX_CHUNKS:
        return None
    contents = Contents(division, {}, {}, set())
    for line in lines[1:]:
        if chunk := _CHUNK.fullmatch(line):
            if (index := int(chunk[1])) < division.n_chunks:
                contents.hashes[index] = chunk[2].decode()
                contents.begun.pop(index, None)
        elif begun := _BEGUN.fullmatch(line):
            index, n = int(begun[1]), int(begun[2])
            if index < division.n_chunks and n < division.length(index):
                contents.hashes.pop(index, None)
                contents.begun.pop(index, None)
                if n:
                    contents.begun[index] = (n, begun[3].decode())
        elif etag := _ETAG.fullmatch(line):
            contents.etags.add(unquote(etag[1].decode()))
    return contents


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
