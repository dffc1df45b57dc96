"""What a name asks to be pulled, told before anything is fetched."""

from __future__ import annotations

from localllm.errors import ArgumentError
from localllm.store import wanted
from localllm.store.catalog import Catalog, Entry
from localllm.store.index import Store
from localllm.store.wanted import PathName, PlainName, Wanted


def wish_of(name: str, known: Catalog, store: Store) -> Entry | Wanted:
    """The entry of the package index, or what a source is asked for. Raises `ArgumentError` for a
    path and for what is no name, `UnknownModelError` with the nearest names."""
    asked = wanted.parse(name)
    if isinstance(asked, PathName):
        raise ArgumentError(
            f"{name[:200]} is on this machine already",
            f"It runs as it is: localllm run {name[:80]}. To give it a name: localllm import",
        )
    if isinstance(asked, PlainName):
        if entry := known.find(asked.ref):
            return entry
        if known.request(asked.ref) is None:
            raise known.unknown(asked.ref, (model.ref for model in store.list()))
    return asked
