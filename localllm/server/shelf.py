"""The models that a server may load: those it was started with, or all of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.engine.open import OpenOptions
from localllm.errors import LocalLLMError
from localllm.server.errors import RequestError
from localllm.server.opening import ModelFile
from localllm.store import catalog, wanted
from localllm.store.index import Model, Store
from localllm.store.ref import Ref
from localllm.store.settings import NOTHING_SET
from localllm.store.wanted import PathName

MAX_NAME = 512  # characters that a request may call a model by


@dataclass(frozen=True)
class Item:
    """A model that may be loaded. names: what requests call it, the first is shown. sampling: the
    parameters of answers that came with it. ref: its name in the store, if it lies there."""

    file: ModelFile
    options: OpenOptions
    names: tuple[str, ...]
    created: int
    size: int = 0  # bytes on disk
    sampling: Mapping[str, Any] = field(default_factory=dict, compare=False)
    ref: Ref | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Alike for two names of one model."""
        return (self.file.path, self.file.digest, self.file.beside, self.options)


class Shelf:
    """`own`: models that the server was started with. Without any: those of the store, as they are
    at the moment, opened by `options`. sampling: parameters of answers, before what came with a
    model."""

    def __init__(
        self,
        own: Sequence[Item],
        options: OpenOptions | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self._options, self._sampling = options or OpenOptions(), sampling or {}
        self._own = tuple(map(self._with_sampling, own))

    @property
    def first(self) -> Item | None:
        """What a request gets that names no model."""
        if self._own:
            return self._own[0]
        stored = self.items()
        return stored[0] if len(stored) == 1 else None

    def items(self) -> list[Item]:
        """All of them. Reads the store's folder."""
        if self._own:
            return list(self._own)
        return [self._stored(model) for model in _store().list() if not model.problem]

    def find(self, name: str) -> Item:
        """The model of a name. A request never names a path. Raises `RequestError`."""
        for item in self._own:
            if name in item.names:
                return item
        if not self._own and (model := _in_store(name)):
            return replace(self._stored(model), names=(name,))
        known = [name for item in self.items() for name in item.names]
        there = f"There is: {', '.join(known[:5])}" if known else "localllm pull brings some here."
        raise RequestError(
            f"there is no model {name[:200]!a} here",
            there,
            param="model",
            code="model_not_found",
            status=404,
            type="not_found_error",
        )

    def _stored(self, model: Model) -> Item:
        return self._with_sampling(stored(model, self._options))

    def _with_sampling(self, item: Item) -> Item:
        return replace(item, sampling={**item.sampling, **self._sampling})

    def of_file(self, path: Path, beside: str) -> Item | None:
        """The model in a file with the template that comes with it, if that is how it is served:
        by the engine and the template that anyone would get."""
        for item in self.items():
            as_usual = item.options.template is None and item.options.engine == "auto"
            if as_usual and item.file.beside == beside and _same(item.file.path, path):
                return item
        return None


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # ValueError: no path, as one with a zero byte
        return False


def stored(model: Model, options: OpenOptions) -> Item:
    """A model of the store."""
    settings = model.record.settings if model.record else NOTHING_SET
    name, digest = str(model.ref), (model.record.digest if model.record else None) or ""
    return Item(
        ModelFile(model.path, name, digest, settings.template),
        options.carried(settings.at_load("num_ctx"), settings.at_load("num_thread")),
        (name,),
        int(model.modified),
        size=model.size,
        sampling=settings.sampling,
        ref=model.ref,
    )


def _store() -> Store:
    return Store(paths.current().models)


def _in_store(name: str) -> Model | None:
    from localllm.store.lockfile import Lockfile
    from localllm.store.resolve import local_refs

    if len(name) > MAX_NAME:
        return None
    store = _store()
    try:
        asked = wanted.parse(name)
        if isinstance(asked, PathName):
            return None
        refs = [asked.ref, *local_refs(asked.ref, catalog.load(damaged=lambda e: None), Lockfile())]
        return next((model for ref in refs if (model := store.find(ref))), None)
    except LocalLLMError:
        return None
