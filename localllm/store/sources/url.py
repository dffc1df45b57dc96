"""A GGUF file of a web server. The address says nothing of the content: size and ETag come from the
server, the hash is taken as the file arrives and kept in its record."""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from localllm.errors import DownloadError
from localllm.store import quantization
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.transfer.http import Fault, Transport, public_address
from localllm.store.transfer.look import Remote, look
from localllm.store.transfer.magic import require_gguf
from localllm.store.transfer.small import SOON
from localllm.store.wanted import UrlName

SOURCE = "url"


def resolve(wanted: UrlName) -> Offer:
    """What the server has at the addresses. Raises `DownloadError`, `FormatError`."""
    transport = Transport(SOON)
    try:
        looks = [_look(transport, url) for url in wanted.urls]
    finally:
        transport.close()
    first = wanted.urls[0]
    found = quantization.quantization_of(_name(first))
    return Offer(
        ref=wanted.ref,
        source=SOURCE,
        repository=public_address(first),
        revision=_revision(looks),
        files=tuple(map(_file, wanted.urls, looks)),
        quantization=str(found) if found else "",
    )


def _look(transport: Transport, url: str) -> Remote:
    for attempt in range(SOON.tries):
        try:
            remote = look(transport, Location(url), None)
        except Fault as e:
            if e.grave or attempt == SOON.tries - 1:
                hint = "Check the network and the address." if e.unreachable else None
                raise DownloadError(f"cannot get {public_address(url)}: {e}", hint) from e
        else:
            require_gguf(_name(url), remote.head)
            return remote
    raise AssertionError("the last attempt returns or raises")


def _file(url: str, remote: Remote) -> RemoteFile:
    location = Location(url, etag=remote.etag or None)
    return RemoteFile(_name(url), remote.size, None, lambda: location)


def _revision(looks: list[Remote]) -> str:
    """What changes with the content, as far as the server tells: "" where it tells nothing."""
    marks = [remote.etag or remote.modified for remote in looks]
    if not all(marks):
        return ""
    return marks[0] if len(marks) == 1 else hashlib.sha256(" ".join(marks).encode()).hexdigest()


def _name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]
