"""From the engine's thread to the server's loop: the requests behind one HTTP request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence

from localllm.engine.exchange import Chunk
from localllm.engine.request import (
    Emit,
    Event,
    Failed,
    Finished,
    Piece,
    PromptLogprobs,
    Request,
    Service,
    Ticket,
    Timings,
    Usage,
)
from localllm.errors import ArgumentError, CancelledError
from localllm.server.metrics import Metrics
from localllm.server.request_log import Tally

MAX_SCORED = 1 << 17
"""Log probabilities of prompts' tokens in one answer; each takes a kilobyte until it is sent."""

MAX_HELD_LOGPROBS = 1 << 20
"""Log probabilities of answers that leave as a whole; each takes half a kilobyte until then."""


def _check_scored(requests: Sequence[Request]) -> None:
    n = sum(
        len(request.prompt) * (request.prompt_logprobs + 1)
        for request in requests
        if request.prompt_logprobs is not None
    )
    if n > MAX_SCORED:
        raise ArgumentError(
            f"log probabilities of the prompts would be {n:,}, the limit is {MAX_SCORED:,}: one a "
            "token, and one for each of its likeliest tokens",
            "Send the prompts in several requests, or ask for fewer likeliest tokens.",
        )


def _n_logprobs(request: Request) -> int:
    """That the answers of a request may have at the most, if it says how long they may be."""
    params = request.params
    if params.max_tokens is None or params.logprobs is None:
        return 0
    return request.n * params.max_tokens * (params.logprobs + 1)


def check_held(n: int) -> None:
    """Raises `ArgumentError` for more log probabilities than a whole answer may have."""
    if n > MAX_HELD_LOGPROBS:
        raise ArgumentError(
            f"log probabilities of the answer are {n:,} or more, the limit is "
            f"{MAX_HELD_LOGPROBS:,}: one a token, and one for each of its likeliest tokens",
            "Ask with stream: true, for fewer answers, for shorter ones (max_tokens) or for fewer "
            "likeliest tokens.",
        )


class RequestGroup:
    """Made on the loop. `start`, then read `events`; `cancel` in the end, whatever happened."""

    def __init__(self, service: Service, metrics: Metrics, model: str) -> None:
        """model: under which name its figures count."""
        self._service, self._metrics, self._model = service, metrics, model
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        self._n_open = 0
        self._started_s = time.monotonic()
        self.tally = Tally()

    def start(
        self,
        requests: Sequence[Request],
        answered: Callable[[Sequence[int]], None] | None = None,
        *,
        whole: bool,
    ) -> None:
        """Submits all of them, or none: raises what `Service.submit` raises. answered: told of the
        token ids of each answer that comes to its end. whole: the answers are held until all have
        come to theirs."""
        self._answered = answered
        most = self._service.info.max_requests
        if most and len(requests) > most:  # it could wait forever for so many places at once
            raise ArgumentError(
                f"{len(requests)} prompts in one request; the server takes {most} at once",
                "Send them in several requests, or start it with a larger --max-queue.",
            )
        _check_scored(requests)
        if whole:
            check_held(sum(map(_n_logprobs, requests)))
        self.tally.prompt_tokens = sum(len(request.prompt) for request in requests)
        try:
            for i, request in enumerate(requests):
                if request.params.max_tokens == 0 and request.prompt_logprobs is None:
                    self._answer_nothing(i, request)
                else:
                    self._tickets.append(self._service.submit(request, self._emitter(i)))
                self._n_open += 1
        except BaseException:
            self.cancel()
            raise

    async def events(self) -> AsyncIterator[tuple[int, PromptLogprobs | Piece | Finished]]:
        """(number of the request, its event), until all have finished. Raises the error of one that
        failed."""
        timing = _Timing(self._metrics, self._model, self._started_s)
        given: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        while self._n_open:
            number, event = await self._arrived.get()
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                self._n_open -= 1
                self.tally.cached_tokens += event.usage.cached_tokens
                self.tally.queued_s = max(self.tally.queued_s, event.timings.queued_s)
                self._count(event)
            elif isinstance(event, Piece):
                timing.piece((number, event.index), len(event.chunk.token_ids))
                self.tally.generated_tokens += len(event.chunk.token_ids)
                self.tally.first_at_s = timing.first_at_s
                answer = given[number, event.index]
                answer += event.chunk.token_ids
                if (reason := event.chunk.finish_reason) in ("stop", "length"):
                    self._metrics.ends[self._model, reason] += 1
                    self._metrics.add(self._model, "answer_tokens", len(answer))
                    if self._answered:
                        self._answered(answer)
            yield number, event
        timing.end()

    def _count(self, event: Finished) -> None:
        for measure, value in (
            ("queued_s", event.timings.queued_s),
            ("prompt_s", event.timings.prompt_s),
            ("decode_s", event.timings.decode_s),
            ("whole_s", time.monotonic() - self._started_s),
            ("prompt_tokens", event.usage.prompt_tokens),
        ):
            self._metrics.add(self._model, measure, value)

    def cancel(self) -> None:
        """Ends what still runs."""
        for ticket in self._tickets:
            ticket.cancel()

    def cut(self) -> None:
        """The server is stopping: what runs ends with an error that says so."""
        self._arrived.put_nowait((0, Failed(CancelledError("the server is stopping"))))
        self.cancel()

    def _emitter(self, number: int) -> Emit:
        def emit(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, (number, event))

        return emit

    def _answer_nothing(self, number: int, request: Request) -> None:
        """max_tokens 0: the request is checked, nothing is computed."""
        n_prompt = len(request.prompt)
        self._service.info.check_room(n_prompt)
        for index in range(request.n):
            piece = Piece(index, Chunk("", finish_reason="length"))
            self._arrived.put_nowait((number, piece))
        usage = Usage(n_prompt, 0, 0, 0)
        self._arrived.put_nowait((number, Finished(usage, Timings())))


class _Timing:
    """When the tokens of an HTTP request came."""

    def __init__(self, metrics: Metrics, model: str, started_s: float) -> None:
        self._metrics, self._model, self._started_s = metrics, model, started_s
        self.first_at_s: float | None = None
        self._first: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], float] = {}
        self._count: dict[tuple[int, int], int] = {}

    def piece(self, answer: tuple[int, int], n_tokens: int) -> None:
        if not n_tokens:
            return
        now = time.monotonic()
        if self.first_at_s is None:
            self.first_at_s = now
            self._metrics.add(self._model, "first_token_s", now - self._started_s)
        self._first.setdefault(answer, now)
        self._last[answer] = now
        self._count[answer] = self._count.get(answer, 0) + n_tokens

    def end(self) -> None:
        for answer, n_tokens in self._count.items():
            if n_tokens > 1:
                spent = self._last[answer] - self._first[answer]
                self._metrics.add(self._model, "per_token_s", spent / (n_tokens - 1))
