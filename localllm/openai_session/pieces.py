"""From the bytes of a server's answer to pieces: events, or one JSON document where a server does
not stream."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from localllm.openai_session.refusals import said_in_stream
from localllm.server.client import ServerGoneError

_LONGEST_LINE = 8 << 20
_MOST_LINES = 1000  # of one event, which is read anew with each


@dataclass
class Piece:
    """text and reasoning of one event; finish: why it ends, "" if it goes on."""

    text: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)


def pieces(host: str, answer: http.client.HTTPResponse, key: str) -> Iterator[Piece]:
    """Until the server says that it is done. Raises `ServerGoneError` where it ends without, and
    the errors that come in a stream."""
    kind = (answer.getheader("content-type") or "").partition(";")[0].strip().lower()
    if kind == "text/html":
        raise ServerGoneError(
            f"{host} answered with a web page", "Is --url right? It often ends in /v1."
        )
    finished = False
    for document in _documents(host, answer):
        if document is _DONE:
            finished = True
            break
        error = said_in_stream(host, document, key)
        if error is not None:
            raise error
        piece = _piece(document)
        finished = finished or bool(piece.finish)
        yield piece
    if not finished:
        raise ServerGoneError(
            f"{host} broke off its answer", "What came of it is kept. Ask again, or continue it."
        )


def _documents(host: str, answer: http.client.HTTPResponse) -> Iterator[Any]:
    """JSON of each event; `_DONE` for the end."""
    data: list[bytes] = []
    while line := answer.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise ServerGoneError(f"{host} sent a line of more than {_LONGEST_LINE >> 20} MiB")
        line = line.strip(b"\r\n")
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
            if len(data) > _MOST_LINES or sum(map(len, data)) > _LONGEST_LINE:
                raise ServerGoneError(f"{host} sent an event without an end")
            if (document := _parsed(data)) is not _MORE:
                data = []
                yield document
        elif not line:
            if data:
                raise ServerGoneError(f"{host} sent an event that is no JSON")
        elif not line.startswith((b":", b"event:", b"id:", b"retry:")):
            yield from _whole(host, line, answer)
            return
    if data:
        raise ServerGoneError(f"{host} broke off its answer in the midst of an event")


_MORE, _DONE = object(), object()


def _parsed(data: list[bytes]) -> Any:
    """The document of an event so far; `_MORE` while it is not complete."""
    whole = b"\n".join(data)
    if whole == b"[DONE]":
        return _DONE
    try:
        return json.loads(whole)
    except (ValueError, RecursionError):
        return _MORE


def _whole(host: str, first: bytes, answer: http.client.HTTPResponse) -> Iterator[Any]:
    """One document, or one a line, without the form of events."""
    raw = first + b"\n" + answer.read(_LONGEST_LINE)
    try:
        yield json.loads(raw)
        return
    except (ValueError, RecursionError):
        pass
    for line in raw.splitlines():
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                raise ServerGoneError(
                    f"{host} answered with something that is no JSON",
                    "Is --url right? It often ends in /v1.",
                ) from None


def _piece(document: Any) -> Piece:
    piece = Piece()
    if not isinstance(document, Mapping):
        return piece
    usage, timings = document.get("usage"), document.get("timings")
    piece.usage = usage if isinstance(usage, Mapping) else {}
    piece.timings = timings if isinstance(timings, Mapping) else {}
    choices = document.get("choices")
    given = (
        [each for each in choices if isinstance(each, Mapping)] if isinstance(choices, list) else []
    )
    # One answer was asked for: what a server says of another is not mixed into it.
    choice = next((each for each in given if each.get("index", 0) in (0, None)), None)
    if choice is None:
        return piece
    delta = choice.get("delta") or choice.get("message")
    if isinstance(delta, Mapping):
        piece.text = _text(delta.get("content")) or _text(delta.get("refusal"))
        piece.reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    finish = choice.get("finish_reason")
    if isinstance(finish, str) and finish:
        piece.finish = finish
    return piece


def _text(value: Any) -> str:
    """A text, or the texts of a list of parts. A lone half of a pair becomes a replacement."""
    if isinstance(value, list):
        value = "".join(_text(part.get("text")) for part in value if isinstance(part, Mapping))
    if not isinstance(value, str):
        return ""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
