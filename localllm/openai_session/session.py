"""A conversation with a model of another server."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from localllm.engine.exchange import Chunk, Stats
from localllm.errors import ArgumentError, CancelledError, LocalLLMError
from localllm.openai_session.asking import asked, plainer
from localllm.openai_session.endpoint import Endpoint
from localllm.openai_session.models import Served
from localllm.openai_session.pieces import Piece, pieces
from localllm.params import GenerateParams
from localllm.session import SessionInfo

GO_ON = "Continue exactly where you stopped. Repeat nothing of it."
_FINISH = {"length": "length", "max_tokens": "length"}


class OpenAISession:
    """See `Session`. `info.n_ctx` is 0 where the server does not say; `conversation` is of no use
    here: what the server keeps is its own. Token ids are not told.

    Only parameters that differ from the defaults are sent: the server has its own."""

    def __init__(self, endpoint: Endpoint, model: Served) -> None:
        self.endpoint, self.model = endpoint, model
        self.info = SessionInfo(
            engine="server",
            architecture="",
            isa="",
            n_threads=0,
            n_ctx=model.n_ctx,
            n_params=model.n_params,
            weight_bytes=model.size,
            kv_bytes=0,
            description=f"{model.name} {model.quantization}".strip(),
            template=None,
            can_think=True,  # nobody says
            recommended={},
        )
        self.stats = Stats()
        self.notes: tuple[str, ...] = ()
        self.is_lost = False
        self.conversation = ""
        self._plain = False  # the server takes only what OpenAI's own does
        self._used = 0
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._running: _Reading | None = None

    @property
    def progress_tokens(self) -> tuple[int, int]:
        """Not told."""
        return 0, 0

    @property
    def context_used(self) -> int:
        return self._used

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
        go_on: bool = False,
    ) -> Iterator[Chunk]:
        """See `Session.chat`. To go on is asked for in a turn of its own: the interface knows no
        other way."""
        self.stats, self.notes = Stats(), ()
        if warning := self.endpoint.warning:
            self.notes = (warning,)
        if go_on:
            messages = [*messages, {"role": "user", "content": GO_ON}]
            self.notes += (f"{self.endpoint.host} was asked in words to go on with the answer",)
        body = asked(self.model.name, messages, params, think)
        try:
            started = False
            try:
                for chunk in self._chunks(plainer(body) if self._plain else body):
                    started = True
                    yield chunk
            except ArgumentError:
                less = plainer(body)
                if started or self._plain or less == body:
                    raise
                yield from self._chunks(less)
                self._plain = True
                left_out = ", ".join(sorted(body.keys() - less.keys() - {"stream_options"}))
                if left_out:
                    self.notes += (f"{self.endpoint.host} does not take: {left_out}",)
        finally:
            self._cancelled.clear()

    def forget(self) -> None:
        self._used = 0

    def cancel(self) -> None:
        """See `Session.cancel`."""
        self._cancelled.set()
        with self._lock:
            if self._running is not None:
                self._running.end()

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> OpenAISession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _chunks(self, body: Mapping[str, Any]) -> Iterator[Chunk]:
        began = time.perf_counter()
        reading = _Reading(self.endpoint, body)
        with self._lock:
            self._running = reading
        if self._cancelled.is_set():
            reading.end()
        reading.start()
        finish = "stop"
        try:
            for piece in reading.pieces():
                self._count(piece, time.perf_counter() - began)
                if piece.finish:
                    finish = _FINISH.get(piece.finish, "stop")
                    if piece.finish == "content_filter":
                        self.notes += (f"{self.endpoint.host} left out what its filter refused",)
                if piece.text or piece.reasoning:
                    yield Chunk(piece.text, reasoning=piece.reasoning)
        except CancelledError:
            finish = "cancelled"
        finally:
            with self._lock:
                self._running = None
            reading.end()
        yield Chunk("", finish_reason=finish)

    def _count(self, piece: Piece, seconds: float) -> None:
        """A piece counts as a token until the server says better."""
        stats = self.stats
        if piece.text or piece.reasoning:
            if not stats.generated_tokens:
                stats.prompt_s = stats.first_token_s = seconds
            stats.generated_tokens += 1
            stats.reasoning_tokens += bool(piece.reasoning)
            stats.decode_s = seconds - stats.first_token_s
        usage, timings = piece.usage, piece.timings
        if usage:
            stats.prompt_tokens = _whole(usage.get("prompt_tokens"), stats.prompt_tokens)
            stats.generated_tokens = _whole(usage.get("completion_tokens"), stats.generated_tokens)
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
            stats.cached_tokens = min(_whole(cached, 0), stats.prompt_tokens)
            details = usage.get("completion_tokens_details")
            if isinstance(details, Mapping):
                stats.reasoning_tokens = _whole(
                    details.get("reasoning_tokens"), stats.reasoning_tokens
                )
        if timings and "cache_n" in timings:  # llama-server's
            stats.cached_tokens = min(_whole(timings["cache_n"], 0), stats.prompt_tokens)
        stats.computed_tokens = stats.prompt_tokens - stats.cached_tokens
        self._used = stats.prompt_tokens + stats.generated_tokens


class _Reading:
    """One request on a thread of its own: whoever waits for it can be let go at once, whatever the
    network is doing."""

    def __init__(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        self._endpoint, self._body = endpoint, body
        self._arrived: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._ended = False

    def start(self) -> None:
        threading.Thread(target=self._read, name="openai-session", daemon=True).start()

    def end(self) -> None:
        """From any thread; twice is no error."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            connection = self._connection
        self._arrived.put(CancelledError("the answer was stopped"))
        if connection is not None:
            with contextlib.suppress(OSError, ValueError):
                # Not that of a TLS socket, which takes away what the other thread reads with.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def pieces(self) -> Iterator[Piece]:
        """Raises what failed, and `CancelledError` after `end`."""
        while (item := self._arrived.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _read(self) -> None:
        endpoint = self._endpoint
        try:
            with endpoint.answering("/chat/completions", self._body, self._connected) as answer:
                for piece in pieces(endpoint.host, answer, endpoint.key):
                    self._arrived.put(piece)
            self._arrived.put(None)
        except LocalLLMError as e:
            self._arrived.put(e)
        except BaseException as e:  # whatever it is, it must reach the caller, not hang it
            self._arrived.put(LocalLLMError(f"internal error: {type(e).__name__}: {e}"))

    def _connected(self, connection: socket.socket) -> None:
        with self._lock:
            if self._ended:
                raise CancelledError("the answer was stopped")
            self._connection = connection


def _whole(value: Any, default: int) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
    return int(value) if good else default
