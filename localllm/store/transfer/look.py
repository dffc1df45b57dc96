"""A first look at a file on a server: does it answer, how large is the file, can it be had in
ranges, what does it begin with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from localllm.store.offer import Location
from localllm.store.transfer.http import Answer, Fault, Route, Transport, public_address
from localllm.store.transfer.magic import HEAD_BYTES
from localllm.store.transfer.partial import Partial

MAX_SIZE = 1 << 44  # 16 TiB: no model is as large
_WITNESSES = 3


@dataclass(frozen=True)
class Remote:
    """What a server said of a file."""

    route: Route
    size: int | None
    etag: str  # strong, or empty
    modified: str  # a strong date, or empty
    ranged: bool
    ends: bool  # a body without a length ends in a way that can be told from a broken connection
    head: bytes  # its first bytes, HEAD_BYTES of them if it has as many
    host: str

    def identity(self, location_etag: str | None) -> str | None:
        """A text that another content does not have. None if the server says too little."""
        address = public_address(self.route.location.url)
        if self.size is None:
            return None
        if etag := location_etag or self.etag:
            return f"etag {etag} {self.size} {address}"
        return f"modified {self.modified} {self.size} {address}" if self.modified else None

    def require_same(self, answer: Answer, etags: set[str], *, hashed: bool) -> None:
        """Raises `Fault` if a later answer is about another content. hashed: the sha256 of the file
        is known, so an answer may say less."""
        if None not in (answer.total, self.size) and answer.total != self.size:
            raise Fault(
                f"{answer.host} has {answer.total} bytes now, it had {self.size}",
                look=True,
                grave=True,
            )
        if hashed:
            same = answer.etag in ("", self.etag, *etags)
        else:
            same = (answer.etag, answer.modified) == (self.etag, self.modified)
        if same:
            return
        raise Fault(f"the file on {answer.host} has changed", look=True, grave=not hashed)


def look(transport: Transport, location: Location, size: int | None) -> Remote:
    """Asks for the first bytes. `size` is what the source said. Raises `Fault`, `DownloadError`."""
    route = Route(location)
    head = bytearray()
    with transport.get(route, 0, HEAD_BYTES) as answer:
        for block in answer.blocks():
            head += block
            if len(head) >= HEAD_BYTES:
                break
    if not head or answer.total == 0:
        raise Fault(f"{answer.host} sent an empty file", grave=True)
    if answer.total is not None and answer.total > MAX_SIZE:
        raise Fault(
            f"{answer.host} claims {answer.total} bytes, at most {MAX_SIZE} can be", grave=True
        )
    if None not in (size, answer.total) and size != answer.total:
        raise Fault(
            f"{answer.host} has {answer.total} bytes, the source says {size}", look=True, grave=True
        )
    return Remote(
        route=route,
        size=size if answer.total is None else answer.total,
        etag=answer.etag,
        modified=answer.modified,
        ranged=answer.ranged,
        ends=answer.ends,
        head=bytes(head[:HEAD_BYTES]),
        host=answer.host,
    )


def admit(transport: Transport, remote: Remote, partial: Partial) -> None:
    """Makes sure that a new ETag stands for the content that is here in part, whose sha256 is
    known: some chunks are fetched again and compared. Raises `Fault` if none of them is the
    same."""
    if not remote.etag or remote.etag in partial.etags:
        return
    witnesses = partial.witnesses(_WITNESSES) if partial.etags and remote.ranged else {}
    if witnesses and not any(
        _sha256(transport, remote, partial, index) == sha256 for index, sha256 in witnesses.items()
    ):
        if len(witnesses) >= _WITNESSES:
            raise Fault(
                f"{remote.host} has another content than before under the same name", grave=True
            )
        partial.forget(witnesses)  # so few: they may have been the damaged ones
    if partial.etags:
        partial.drop_begun()
    partial.accept(remote.etag)


def _sha256(transport: Transport, remote: Remote, partial: Partial, index: int) -> str:
    first = index * partial.division.chunk_bytes
    hashed = hashlib.sha256()
    stop = first + partial.division.length(index)
    with transport.get(remote.route, first, stop) as answer:
        if not answer.ranged:
            raise Fault(f"{answer.host} sent the whole file instead of a range", grave=True)
        for block in answer.blocks():
            hashed.update(block)
    return hashed.hexdigest()
