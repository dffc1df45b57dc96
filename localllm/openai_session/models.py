"""The models that a server has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from localllm.errors import LocalLLMError
from localllm.openai_session.endpoint import Endpoint
from localllm.server.client import ServerGoneError

MOST = 2000
_LONGEST_NAME = 300


@dataclass(frozen=True)
class Served:
    """A model of a server; 0 and "" where it does not say."""

    name: str
    n_ctx: int = 0
    n_params: int = 0
    size: int = 0
    quantization: str = ""
    is_loaded: bool = True


def served_models(endpoint: Endpoint) -> list[Served]:
    """Loaded ones first, else in the server's order. Raises `LocalLLMError`."""
    document = endpoint.get("/models")
    rows = document.get("data") if isinstance(document, Mapping) else document
    if rows is None and isinstance(document, Mapping):
        rows = document.get("models")
    if not isinstance(rows, list):
        raise ServerGoneError(
            f"{endpoint.host} answered /models with no list of models",
            f"Is {endpoint.url} the address of an OpenAI-style API? It often ends in /v1.",
        )
    found = list(_served(rows[:MOST]))
    if not found:
        raise LocalLLMError(f"{endpoint.host} has no models", "Load one there first.")
    return sorted(found, key=lambda each: not each.is_loaded)


def _served(rows: list[Any]) -> Iterator[Served]:
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        name = row.get("id") or row.get("model") or row.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            continue
        meta, status = _mapping(row.get("meta")), _mapping(row.get("status"))
        n_ctx = _count(meta.get("n_ctx")) or _count(row.get("max_model_len"))
        yield Served(
            name=name,
            n_ctx=n_ctx or _count(row.get("context_length")),
            n_params=_count(meta.get("n_params")),
            size=_count(meta.get("size")),
            quantization=_text(meta.get("quantization")),
            is_loaded=status.get("value", "loaded") == "loaded",
        )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 60
    return int(value) if good else 0


def _text(value: Any) -> str:
    return value[:60] if isinstance(value, str) else ""
