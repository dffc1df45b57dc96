"""Which models a server has, and how long one is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localllm.engine.request import LoadedModel, Service, ServiceState
from localllm.server.errors import RequestError


@dataclass(frozen=True)
class Card:
    """A model in /v1/models. info: None while it is not loaded."""

    name: str
    created: int
    info: LoadedModel | None


@dataclass(frozen=True)
class Lease:
    """A model that stays loaded until `release`. defaults: parameters of answers that the model
    comes with."""

    service: Service
    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    release: Callable[[], None] = lambda: None


class Models(Protocol):
    """The models of a server."""

    def cards(self) -> Sequence[Card]: ...

    def states(self) -> Mapping[str, ServiceState]:
        """Of the loaded ones."""

    async def lease(self, name: str | None) -> Lease:
        """The model of a name, loaded if need be; None: the first one. Raises `RequestError` for
        a name that is none, and what loading raises."""

    async def close(self) -> None:
        """Closes what is loaded."""


class OneModel:
    """One model under its names; the first is the one that answers show."""

    def __init__(self, service: Service, names: Sequence[str], defaults: Mapping[str, Any]) -> None:
        self._service, self._names, self._defaults = service, tuple(names), dict(defaults)
        self._created = int(time.time())

    def cards(self) -> Sequence[Card]:
        return [Card(name, self._created, self._service.info) for name in self._names]

    def states(self) -> Mapping[str, ServiceState]:
        return {self._names[0]: self._service.state()}

    async def lease(self, name: str | None) -> Lease:
        known(name, self._names)
        return Lease(self._service, name or self._names[0], self._defaults)

    async def close(self) -> None:
        await asyncio.to_thread(self._service.close)


def known(name: str | None, names: Sequence[str]) -> None:
    """Raises `RequestError` for a name that is none of the names; None is the first one."""
    if name is not None and name not in names:
        raise RequestError(
            f"there is no model {name[:200]!a} here",
            f"There is: {', '.join(names[:5])}",
            param="model",
            code="model_not_found",
            status=404,
            type="not_found_error",
        )
