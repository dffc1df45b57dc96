"""What a server says of its models, and how long one is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localllm.engine.request import LoadedModel, Service

LOADED, LOADING, UNLOADING, NOT_LOADED = "loaded", "loading", "unloading", "unloaded"


@dataclass(frozen=True)
class Card:
    """A model in /v1/models. info: None while it is not loaded."""

    name: str
    created: int
    info: LoadedModel | None
    status: str = LOADED


@dataclass(frozen=True)
class Row:
    """A model that takes memory, or is about to. Times are seconds."""

    name: str
    status: str
    n_bytes: int
    n_ctx: int = 0
    answering: int = 0  # requests that have it
    waiting: int = 0  # requests that wait for its load
    progress: float = 1.0  # of its load
    expires_s: float | None = None  # until it is unloaded; None: not while it is as it is


@dataclass(frozen=True)
class Lease:
    """A model that stays loaded until `release`. name: what it was asked by; shown: what it is
    called here; defaults: parameters of answers that the model comes with."""

    service: Service
    name: str
    shown: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    release: Callable[[], None] = lambda: None
