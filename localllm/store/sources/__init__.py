"""Where models come from, a module for each kind. `offer` is the one way in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, FileError
from localllm.store.catalog import Catalog
from localllm.store.lockfile import Lockfile
from localllm.store.offer import Offer
from localllm.store.ref import Ref
from localllm.store.wanted import (
    HubName,
    OciName,
    PathName,
    PeerName,
    PlainName,
    UrlName,
    Wanted,
)


def offer(wanted: Wanted, catalog: Catalog, lock: Lockfile | None, key: str = "") -> Offer:
    """What is offered for a name; without a lock file the newest. key: what a peer is told, and no
    other source. Raises `UnknownModelError` for a name that the catalogue does not have,
    `DownloadError` and `FormatError` where a source cannot deliver."""
    if isinstance(wanted, PeerName):
        from localllm.store.sources import peer

        return peer.resolve(wanted, key)
    resolve: Callable[[Any, Catalog, Lockfile | None], Offer] = _RESOLVERS[type(wanted)]
    return resolve(wanted, catalog, lock)


def asked(wanted: Wanted, catalog: Catalog) -> Ref | None:
    """The name that a wish is pinned under, None for a path. All spellings of a catalogue name have
    the same: `m`, `m:7b` and `m:7b-instruct` are `m:7b`."""
    if isinstance(wanted, PathName):
        return None
    if isinstance(wanted, PlainName) and (request := catalog.request(wanted.ref)):
        return request.ref_as(request.quantization)
    return wanted.ref


def _plain(wanted: PlainName, catalog: Catalog, lock: Lockfile | None) -> Offer:
    from localllm.store.resolve import resolve_request
    from localllm.store.sources.hub import Hub

    request = catalog.request(wanted.ref)
    if request is None:
        raise catalog.unknown(wanted.ref)
    return resolve_request(request, Hub(), lock)


def _hub(wanted: HubName, catalog: Catalog, lock: Lockfile | None) -> Offer:
    from localllm.store.resolve import resolve_hub
    from localllm.store.sources.hub import Hub

    return resolve_hub(wanted, Hub(), lock)


def _oci(wanted: OciName, catalog: Catalog, lock: Lockfile | None) -> Offer:
    from localllm.store.sources import oci

    return oci.resolve(wanted)


def _url(wanted: UrlName, catalog: Catalog, lock: Lockfile | None) -> Offer:
    from localllm.store.sources import url

    return url.resolve(wanted)


def _path(wanted: PathName, catalog: Catalog, lock: Lockfile | None) -> Offer:
    from localllm.store.sources import local

    try:
        path = Path(wanted.path).expanduser()
    except RuntimeError as e:
        raise ArgumentError(f"{wanted.path[:200]} names no folder: {e}") from e
    if not path.exists():
        raise FileError(f"there is no file {path}", "Check the path.")
    return local.resolve(path)


_RESOLVERS: dict[type, Callable[[Any, Catalog, Lockfile | None], Offer]] = {
    PlainName: _plain,
    HubName: _hub,
    OciName: _oci,
    UrlName: _url,
    PathName: _path,
}
