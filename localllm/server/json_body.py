"""The body of a request as plain data: strict JSON, nothing guessed."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from localllm.server.errors import RequestError

MAX_DEPTH = 128
_MAX_NUMBER = 400  # characters; the longest finite double has 309 digits
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NOT_BRACKETS = re.compile(rb"[^\[\]{}]+")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def parse(data: bytes) -> dict[str, Any]:
    """The object in a body. Raises `RequestError` for bytes that are no UTF-8, no JSON or no
    object, for a key that is there twice, a number that no double holds, half a character, and
    more than `MAX_DEPTH` levels."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise _refused(f"the body is no UTF-8: byte {e.start} is 0x{data[e.start]:02X}") from None
    _check_depth(data)
    try:
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except RequestError:
        raise
    except (ValueError, RecursionError) as e:
        raise _refused(f"the body is no JSON: {str(e)[:200]}") from None
    if not isinstance(value, dict):
        raise _refused("the body is no JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as e:
        code = ord(e.object[e.start])
        raise _refused(
            f"the body holds half a character (U+{code:04X})",
            "Send characters outside the basic plane whole, not as one surrogate.",
        ) from None
    return value


def _refused(message: str, hint: str | None = None) -> RequestError:
    return RequestError(message, hint, code="invalid_json")


def _check_depth(data: bytes) -> None:
    depth = 0
    for bracket in _NOT_BRACKETS.sub(b"", _STRING.sub(b"", data)):
        depth += _STEPS[bracket]
        if depth > MAX_DEPTH:
            raise _refused(f"the body is nested more than {MAX_DEPTH} deep")


def _integer(text: str) -> int:
    if len(text) > _MAX_NUMBER:
        raise _refused(f"the body holds a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text) if len(text) <= _MAX_NUMBER else math.inf
    if not math.isfinite(value):
        raise _refused(f"the body holds a number that is too large: {text[:40]}")
    return value


def _constant(text: str) -> float:
    raise _refused(f"the body holds {text}, which is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _refused(f"the body has the key {twice[:80]!a} twice")
    return found
