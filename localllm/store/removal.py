"""Deleting models: what goes with a name, whether something else needs it, and the deed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localllm import paths
from localllm.errors import ArgumentError, FileError
from localllm.store import catalog, copies, download, kv_cache, wanted
from localllm.store.catalog import Catalog, Entry, UnknownModelError
from localllm.store.foreign import stores
from localllm.store.index import Model, Store
from localllm.store.lockfile import Lockfile
from localllm.store.ref import Ref, parse
from localllm.store.resolve import exact_refs, local_refs
from localllm.store.transfer import partials
from localllm.store.transfer.partials import Waiting
from localllm.store.wanted import PathName


@dataclass(frozen=True)
class Doomed:
    """What goes with a name."""

    label: str
    model: Model | None
    entry: Entry | None
    waiting: tuple[Waiting, ...]
    size: int  # bytes that become free


def doomed(names: Iterable[str], known: Catalog, places: paths.Paths) -> list[Doomed]:
    """What goes with each name, once. Raises `UnknownModelError` for a name that is none here
    exactly, `ArgumentError` for one of another program, and `FileError` if a model that stays would
    lose its file."""
    store = Store(places.models)
    found = {each.label: each for each in (_doomed(name, store, known, places) for name in names)}
    going = list(found.values())
    _require_unused(store, going)
    return going


def remove(
    going: Sequence[Doomed], places: paths.Paths, gone: Callable[[Doomed], None]
) -> list[Path]:
    """Deletes models, parts of downloads and computed conversations; `gone` is told of each.
    Returns the files that stay where they are. Raises `FileError` if the system refuses."""
    store = Store(places.models)
    digests = kv_cache.known_digests(each.model for each in going if each.model)
    for each in going:
        if each.model is not None:
            store.remove(each.model)
        if each.entry is not None:
            download.forget_parts(each.entry, places.downloads)
        for waiting in each.waiting:
            partials.remove(waiting)
        gone(each)
    kv_cache.forget_unused(places.kv, digests, store.list())
    # Only now: a copy without links refers to a file that may have gone too.
    stays = {each.model.path for each in going if each.model and each.model.elsewhere}
    return sorted(path for path in stays if path.is_file())


def _doomed(name: str, store: Store, known: Catalog, places: paths.Paths) -> Doomed:
    if (foreign := stores.find(name)) and store.find(foreign.ref) is None:
        raise ArgumentError(
            f"{foreign.ref} belongs to {foreign.program}, whose models are never deleted here",
            f"Delete it with {foreign.program} itself.",
        )
    asked = wanted.parse(name)
    if isinstance(asked, PathName):
        raise ArgumentError(
            f"{name[:200]!a} is a path and no model name",
            "A file is yours to delete. A model name looks like smollm2:135m.",
        )
    refs = exact_refs(asked.ref, known, Lockfile())
    model = next(filter(None, map(store.find, refs)), None)
    entry = next((each for each in known if each.ref == asked.ref), None)
    labels = {str(ref) for ref in refs}
    begun = partials.listing(places.downloads)
    waiting = tuple(each for each in begun if each.label in labels)
    cached = download.cached_bytes(entry, places.downloads) if entry else 0
    if model is None and not cached and not waiting:
        raise _not_here(asked.ref, store, known, [each.label for each in begun])
    label = str(model.ref if model else entry.ref if entry else asked.ref)
    size = cached + sum(each.disk_bytes for each in waiting)
    if model is not None and not model.elsewhere:
        size += sum(path.stat().st_size for path in model.files if not copies.is_shared(path))
    return Doomed(label, model, entry, waiting, size)


def _not_here(ref: Ref, store: Store, known: Catalog, begun: list[str]) -> UnknownModelError:
    """The error for a name that is none here exactly: what it may mean is only hinted at."""
    short = next((each for each in local_refs(ref, known, Lockfile()) if store.find(each)), None)
    here = [each.ref for each in store.list()]
    for label in begun:
        with contextlib.suppress(ArgumentError):  # a label may be anything
            here.append(parse(label))
    hint = catalog.suggestion(ref, here) or "See: localllm list"
    if short is not None:
        hint = f"`rm` takes whole names. Did you mean {short}?"
    return UnknownModelError(f"{ref} is not on this machine", hint)


def _require_unused(store: Store, doomed: Sequence[Doomed]) -> None:
    """Raises `FileError` if a model that stays is made of the files of one that goes."""
    going = {each.model.ref for each in doomed if each.model}
    for each in doomed:
        users = copies.users_of(store, each.model) if each.model else []
        if left := [str(user.ref) for user in users if user.ref not in going]:
            raise FileError(
                f"{', '.join(left)} would lose its file with {each.label}",
                "This disk has no links, so they share one file. Delete them together.",
            )
