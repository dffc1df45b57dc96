"""The headers of an offer's files without their data: enough to plan with, some megabytes of many
gigabytes. They are asked for in growing ranges, because only a whole header tells its length."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from localllm.errors import DownloadError, FormatError, UnsupportedError
from localllm.store.inspect import GgufFile
from localllm.store.offer import Offer, RemoteFile
from localllm.store.transfer.http import Fault, Route, Transport, public_address
from localllm.store.transfer.magic import require_gguf
from localllm.store.transfer.settings import MIB
from localllm.store.transfer.small import SOON

FIRST_BYTES = 2 * MIB
GROWTH = 4
#: The largest header in use, with 262k tokens and their merges, has about 15 MB.
MOST_BYTES = 128 * MIB


@contextlib.contextmanager
def headers(
    offer: Offer, report: Callable[[int], None], *, most_bytes: int = MOST_BYTES
) -> Iterator[Path]:
    """Gives the path of the first of the files, of which only the headers are there, all in one
    folder that goes with the context. report is told the bytes that came. Raises `DownloadError`,
    and `FormatError` where the first most_bytes are no header.
    """
    if offer.in_place:
        yield offer.in_place[0]
        return
    with tempfile.TemporaryDirectory(prefix="localllm-plan-") as folder:
        n = len(offer.files)
        names = (
            ["model.gguf"] if n == 1 else [f"model-{i + 1:05d}-of-{n:05d}.gguf" for i in range(n)]
        )
        heads = [
            _Head(file, Path(folder) / name) for file, name in zip(offer.files, names, strict=True)
        ]
        transport = Transport(SOON)
        try:
            _fetch(transport, heads, report, most_bytes)
        finally:
            transport.close()
        yield heads[0].path


class _Head:
    """The beginning of one file, as far as it has come."""

    def __init__(self, file: RemoteFile, path: Path) -> None:
        self._file, self.path = file, path
        self.n_bytes, self._is_whole = 0, False

    def extend(self, transport: Transport, n_bytes: int) -> bool:
        """Makes it n_bytes long, or as long as the file is. Returns whether anything came."""
        if self._is_whole:
            return False
        route = Route(self._file.locate())
        before = self.n_bytes
        with (
            self.path.open("r+b" if before else "wb") as out,
            transport.get(route, before, n_bytes) as answer,
        ):
            skipped = 0 if answer.ranged else before  # a server without ranges sends all of it
            out.seek(before)
            for block in answer.blocks():
                new = block[skipped:]
                skipped -= len(block) - len(new)
                out.write(new[: n_bytes - self.n_bytes])
                self.n_bytes = min(n_bytes, self.n_bytes + len(new))
                if self.n_bytes == n_bytes:
                    break
            out.truncate()
            self._is_whole = self.n_bytes < n_bytes or self.n_bytes == answer.total
        if not before:
            with self.path.open("rb") as head:
                require_gguf(self._file.name, head.read(4096))
        return self.n_bytes > before

    @property
    def url(self) -> str:
        return public_address(self._file.locate().url)


def _fetch(
    transport: Transport, heads: list[_Head], report: Callable[[int], None], most_bytes: int
) -> None:
    size = FIRST_BYTES
    while True:
        grown = [_tried(transport, head, size) for head in heads]
        report(sum(head.n_bytes for head in heads))
        try:
            # What is valid and runs nowhere here is said by who plans it.
            with contextlib.suppress(UnsupportedError):
                GgufFile(heads[0].path, header_only=True).close()
            return
        except FormatError:
            if size >= most_bytes or not any(grown):
                raise
        size = min(most_bytes, size * GROWTH)


def _tried(transport: Transport, head: _Head, n_bytes: int) -> bool:
    """`extend`, again after faults that may pass."""
    wait = SOON.first_wait_s
    for attempt in range(SOON.tries):
        try:
            return head.extend(transport, n_bytes)
        except Fault as e:
            if attempt == SOON.tries - 1:
                hint = "Check the network." if e.unreachable else None
                raise DownloadError(f"cannot read the header of {head.url}: {e}", hint) from e
            time.sleep(min(e.after or wait, SOON.longest_asked_s))
            wait *= 2
    raise AssertionError("the last attempt returns or raises")
