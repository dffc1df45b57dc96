"""The body of a request as plain data: strict JSON, nothing guessed."""

from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import Any

from localllm.server.errors import RequestError

MAX_DEPTH = 128
MAX_PARTS = 1 << 19
"""Values, keys and brackets in a body: each takes up to 128 bytes while the body is read."""
_MAX_NUMBER = 400  # characters; the longest finite double has 309 digits
_CHUNK = 1 << 16
_OTHERS = bytes(set(range(256)) - set(b'"[]{},:'))
_STEPS = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]


def parse(data: bytes) -> dict[str, Any]:
    """The object in a body. Raises `RequestError` for bytes that are no UTF-8, no JSON or no
    object, for a key that is there twice, a number that no double holds, half a character, and
    more than `MAX_DEPTH` levels or `MAX_PARTS` parts."""
    _check_shape(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise _refused(f"the body is no UTF-8: byte {e.start} is 0x{data[e.start]:02X}") from None
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
    if "\\ud" not in text and "\\uD" not in text:  # without them it was UTF-8
        return value
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            part.encode("utf-8")
    except UnicodeEncodeError as e:
        code = ord(e.object[e.start])
        raise _refused(
            f"the body holds half a character (U+{code:04X})",
            "Send characters outside the basic plane whole, not as one surrogate.",
        ) from None
    return value


def _refused(message: str, hint: str | None = None) -> RequestError:
    return RequestError(message, hint, code="invalid_json")


def _check_shape(data: bytes) -> None:
    """Depth and parts, in one pass over the bytes, before anything is made of them. What comes
    after the first error of the JSON does not count: it is refused for that anyway."""
    depth = n_parts = at = inside = 0  # inside: 1 within a string
    while at < len(data):
        end = at + _CHUNK
        chunk = data[at:end]
        end += (len(chunk) - len(chunk.rstrip(b"\\"))) & 1  # the escape is not cut in two
        chunk = data[at:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = chunk.translate(None, _OTHERS).split(b'"')
        marks = b"".join(pieces[inside::2])
        inside ^= (len(pieces) - 1) & 1
        at = end
        n_parts += len(marks)
        if n_parts > MAX_PARTS:
            raise _refused(f"the body has more than {MAX_PARTS:,} values, keys and brackets")
        brackets = marks.translate(None, b",:")
        levels = list(accumulate(map(_STEPS.__getitem__, brackets), initial=depth))
        depth = levels[-1]
        if max(levels) > MAX_DEPTH:
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
