"""The two ways an answer leaves: one JSON document, or server-sent events as it comes.

Both watch the connection meanwhile: when the client goes, in the queue, in the prompt or in the
answer, the engine stops.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localllm.engine.exchange import Chunk
from localllm.engine.request import Finished, PromptLogprobs, Usage
from localllm.errors import CancelledError, LocalLLMError
from localllm.server import errors
from localllm.server.lanes import client_gone
from localllm.server.metrics import Metrics
from localllm.server.request_group import RequestGroup, check_held
from localllm.server.shapes import Frame, counts, usage

PING_S = 15.0
"""A stream that is silent for so long says that it lives: proxies cut silent connections."""
MANY_LOGPROBS = 100
"""Tokens with log probabilities, each of which takes up to a tenth of a millisecond to write."""
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
EVENTS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
"""Headers of a stream."""

log = logging.getLogger("localllm.server")


class Watched(Response):
    """An answer whose engine requests have been submitted: `work` sends it, and they end when it
    has, or when the client has left. release: called once in the end, whatever happened."""

    def __init__(
        self,
        group: RequestGroup,
        metrics: Metrics,
        release: Callable[[], None],
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers=headers)
        self._group, self._metrics, self._release = group, metrics, release
        self._more_headers = headers

    async def work(self, send: Send) -> None:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["tally"] = self._group.tally
        work = asyncio.create_task(self.work(send))
        gone = asyncio.create_task(client_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._metrics.disconnects += 1
        finally:
            self._group.cancel()
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._release()
        if not work.cancelled():
            work.result()

    def noted(self, error: Exception) -> errors.Kind:
        """How an error is answered; our own faults are logged, without what was asked."""
        kind = errors.kind_of(error)
        self._group.tally.error = kind.code
        if not isinstance(error, LocalLLMError):
            log.error("a fault while answering", exc_info=error)
        return kind


class HttpAnswer(Watched):
    """The answer of one HTTP request. n: choices for each of its engine requests."""

    def __init__(
        self,
        group: RequestGroup,
        frame: Frame,
        metrics: Metrics,
        release: Callable[[], None],
        *,
        n: int,
        n_requests: int,
        headers: dict[str, str],
        stream: bool,
        include_usage: bool = False,
        usage_in_each: bool = False,
    ) -> None:
        super().__init__(group, metrics, release, headers)
        self._frame, self._n, self._n_choices = frame, n, n * n_requests
        self._stream, self._include_usage = stream, include_usage
        self._usage_in_each = usage_in_each
        self._used: list[Usage] = []

    async def work(self, send: Send) -> None:
        if self._stream:
            await stream(send, self._events(), {**EVENTS, **self._more_headers})
        else:
            await self._whole(send)

    async def _whole(self, send: Send) -> None:
        chunks: list[list[Chunk]] = [[] for _ in range(self._n_choices)]
        n_logprobs = 0
        try:
            async for index, chunk in self._chunks():
                chunks[index].append(chunk)
                n_logprobs += sum(1 + len(each.top) for each in chunk.logprobs)
                check_held(n_logprobs)
        except Exception as e:
            kind = self.noted(e)
            await _respond(send, kind.status, errors.body(e), errors.headers(e))
            return
        choices = []
        for index, each in enumerate(chunks):
            choices.append(await self._written(index, each))
            each.clear()
        data = _json(self._frame.whole([], usage(self._used)))
        whole = b'"choices": [' + b", ".join(choices) + b"]"  # no text has its quotes unescaped
        await _respond(send, 200, data.replace(b'"choices": []', whole, 1), self._more_headers)

    async def _written(self, index: int, chunks: list[Chunk]) -> bytes:
        """A whole choice as JSON; on another thread where the loop would stand still meanwhile."""
        n_logprobs = sum(len(chunk.logprobs) for chunk in chunks)
        if n_logprobs < MANY_LOGPROBS:
            return _json(self._frame.shape.whole(index, chunks))
        return await asyncio.to_thread(lambda: _json(self._frame.shape.whole(index, chunks)))

    async def _events(self) -> AsyncIterator[bytes]:
        frame, shape = self._frame, self._frame.shape
        try:
            more = frame.more  # with the first event only
            for index in range(self._n_choices):
                opening = shape.opening(index)
                if opening is not None:
                    yield event(frame.piece([opening], **self._so_far(), **more))
                    more = {}
            async for index, chunk in self._chunks():
                for choice in (shape.begun(index), shape.piece(index, chunk)):
                    if choice is not None:
                        yield event(frame.piece([choice], **self._so_far(), **more))
                        more = {}
            if self._include_usage:
                yield event(frame.piece([], usage=usage(self._used)))
        except Exception as e:
            self.noted(e)
            yield b"data: " + errors.body(e) + b"\n\n"
            return
        yield DONE

    def _so_far(self) -> dict[str, Any]:
        if not self._usage_in_each:
            return {"usage": None} if self._include_usage else {}
        tally = self._group.tally
        return {"usage": counts(tally.prompt_tokens, tally.generated_tokens)}

    async def _chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        """(choice, chunk) as they come. Raises the error of a request that failed."""
        async for number, each in self._group.events():
            if isinstance(each, Finished):
                self._used.append(each.usage)
                continue
            if isinstance(each, PromptLogprobs):
                self._frame.shape.prompt_logprobs(number, each.rows)
                continue
            if each.chunk.finish_reason == "cancelled":
                raise CancelledError("the answer was cut short: the server is stopping")
            yield number * self._n + each.index, each.chunk


async def stream(send: Send, parts: AsyncIterator[bytes], headers: dict[str, str]) -> None:
    """Sends the parts as they come, and pings between them."""
    await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
    async for data in _with_pings(parts):
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def event(document: dict[str, Any]) -> bytes:
    data = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + data.encode() + b"\n\n"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


async def _with_pings(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events, and a comment whenever there was none for `PING_S`."""
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({following}, timeout=PING_S)
            if not done:
                yield PING
                continue
            try:
                data = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield data
    finally:
        if following is not None:
            following.cancel()


async def _respond(send: Send, status: int, data: bytes, more: dict[str, str]) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(data)), **more}
    await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
    await send({"type": "http.response.body", "body": data})


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
