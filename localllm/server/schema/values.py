"""Values of a request's fields, each in its own type. null is a field that is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localllm.errors import ArgumentError
from localllm.server.errors import RequestError
from localllm.server.keep_alive import seconds

_SHOWN = 60


def integer(body: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A whole number from low to high."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise wrong(name, value, f"a whole number from {low} to {high}")
    if not low <= value <= high:
        raise wrong(name, value, f"a whole number from {low} to {high}")
    return int(value)


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def text(body: Mapping[str, Any], name: str, default: str, longest: int) -> str:
    """A text of 1 to `longest` characters."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise wrong(name, value, f"a text of 1 to {longest} characters")
    return value


def one_of(body: Mapping[str, Any], name: str, choices: Sequence[str]) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if value not in choices:
        raise wrong(name, value, "one of " + ", ".join(choices))
    return str(value)


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(name, value, "an object")
    return value


def wrong(name: str, value: Any, expected: str) -> RequestError:
    """The error for a value that a field cannot have."""
    if isinstance(value, int) and value.bit_length() > 256:
        shown = f"a number of {value.bit_length()} bits"
    elif isinstance(value, (list, dict)):
        article, kind = ("a", "list") if isinstance(value, list) else ("an", "object")
        shown = f"{article} {kind}" if value else f"an empty {kind}"
    elif value is None:
        shown = "null or missing"
    else:
        shown = ascii(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return RequestError(f"{name} is {shown}; it must be {expected}", param=name)


def keep_alive(body: Mapping[str, Any]) -> float | None:
    """Seconds that a model stays loaded after the answer; None: as the server keeps models."""
    if body.get("keep_alive") is None:
        return None
    try:
        return seconds(body["keep_alive"])
    except ArgumentError as e:
        raise RequestError(e.message, e.hint, param="keep_alive") from None
