"""A `Service` over an engine of one conversation: requests are answered one after another.

It serves models that only the second engine runs. What an answer computed stays for the next
request that begins alike and has the same salt.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import logging
import threading
import time
from dataclasses import dataclass, field

from localllm.engine.exchange import Question, Stats
from localllm.engine.generate import Generation
from localllm.engine.open import Parts
from localllm.engine.queue_wait import QueueWait
from localllm.engine.request import (
    Emit,
    Failed,
    Finished,
    LoadedModel,
    Piece,
    Request,
    ServiceState,
    Timings,
    Usage,
)
from localllm.engine.scheduler import Rank, rank
from localllm.errors import (
    CancelledError,
    LocalLLMError,
    UnsupportedError,
)
from localllm.params import recommended

MAX_QUEUE = 512

log = logging.getLogger("localllm.engine")


@dataclass(order=True)
class _Ticket:
    rank: Rank
    request: Request = field(compare=False)
    emit: Emit = field(compare=False)
    service: SerialService = field(compare=False)
    submitted_s: float = field(compare=False)
    cancelled: threading.Event = field(compare=False, default_factory=threading.Event)

    @property
    def id(self) -> str:
        return str(self.rank[1])

    def cancel(self) -> None:
        self.service.cancel(self)


class SerialService:
    """See `Service`. Owns the parts: `close` closes them."""

    def __init__(self, parts: Parts, name: str, digest: str, max_queue: int = MAX_QUEUE) -> None:
        self._parts, self._max_queue = parts, max_queue
        self.lost = None
        self.info = dataclasses.replace(loaded_model(parts, name, digest), max_requests=max_queue)
        self._lock = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._running: _Ticket | None = None
        self._arrivals = itertools.count()
        self._closed = False
        self._wait = QueueWait()
        self._salt = b""
        self._seen = parts.engine.progress
        self._counts = ServiceState(last_progress_s=time.monotonic())
        self._thread = threading.Thread(target=self._loop, name="serial-service", daemon=True)
        self._thread.start()

    def submit(self, request: Request, emit: Emit) -> _Ticket:
        if request.prompt_logprobs is not None:
            raise UnsupportedError(
                f"the {self._parts.engine.name} engine, which runs this model, gives no log "
                "probabilities of prompts"
            )
        self.info.check_room(len(request.prompt))
        with self._lock:
            if self._closed:
                raise CancelledError("the server is stopping")
            if len(self._waiting) >= self._max_queue:
                raise self._wait.refusal(len(self._waiting), 1)
            place = rank(next(self._arrivals), request.priority)
            ticket = _Ticket(place, request, emit, self, time.monotonic())
            heapq.heappush(self._waiting, ticket)
            self._lock.notify()
        return ticket

    def state(self) -> ServiceState:
        with self._lock:
            progress = self._parts.engine.progress
            if progress != self._seen:  # a step computes
                self._seen = progress
                self._counts = dataclasses.replace(self._counts, last_progress_s=time.monotonic())
            running, waiting = int(self._running is not None), len(self._waiting)
            return self._counts.seen_at(time.monotonic(), running=running, waiting=waiting)

    def kept_at(self, salt: bytes) -> None:
        """Nothing lies on the disk."""

    def cancel(self, ticket: _Ticket) -> None:
        """Ends a request, wherever it is."""
        with self._lock:
            ticket.cancelled.set()
            if ticket is self._running:
                self._parts.engine.cancel()
                return
            if ticket not in self._waiting:
                return
            self._waiting.remove(ticket)
            heapq.heapify(self._waiting)
        self._end_unserved(ticket)

    def close(self) -> None:
        """Cancels everything and waits for the running step."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            if self._running is not None:
                self._running.cancelled.set()
                self._parts.engine.cancel()
            self._lock.notify()
        for ticket in waiting:
            self._end_unserved(ticket)
        self._thread.join()

    def _end_unserved(self, ticket: _Ticket) -> None:
        ticket.emit(Failed(CancelledError("the request was cancelled before it began")))

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    break
                ticket = self._running = heapq.heappop(self._waiting)
                self._touch()
            try:
                last: Finished | Failed = self._serve(ticket)
            except LocalLLMError as e:
                last = Failed(e)
            except Exception as e:
                last = Failed(fault(e))
            with self._lock:
                self._running = None
                # Under the lock: no later cancel can mean this request.
                self._parts.engine.reset_cancel()
            ticket.emit(last)
        self._parts.engine.close()

    def _serve(self, ticket: _Ticket) -> Finished:
        request, engine = ticket.request, self._parts.engine
        if request.salt != self._salt:
            engine.forget()
            self._salt = request.salt
        began = time.monotonic()
        total = Stats()
        cached = 0
        try:
            for index in range(request.n):
                stats = Stats(prompt_tokens=len(request.prompt))
                self._answer(ticket, index, stats)
                cached = stats.cached_tokens if index == 0 else cached
                total.generated_tokens += stats.generated_tokens
                total.reasoning_tokens += stats.reasoning_tokens
                total.prompt_s += stats.prompt_s
                total.decode_s += stats.decode_s
        finally:
            if not request.may_store:
                engine.forget()
        with self._lock:
            self._wait.add(time.monotonic() - began)
            counts = self._counts
            seconds = total.prompt_s + total.decode_s
            self._counts = dataclasses.replace(
                counts,
                prompt_tokens=counts.prompt_tokens + len(request.prompt),
                hit_tokens=counts.hit_tokens + cached,
                generated_tokens=counts.generated_tokens + total.generated_tokens,
                tokens_per_s=total.generated_tokens / seconds if seconds else 0.0,
            )
        return Finished(
            Usage(len(request.prompt), cached, total.generated_tokens, total.reasoning_tokens),
            Timings(began - ticket.submitted_s, total.prompt_s, total.decode_s),
        )

    def _answer(self, ticket: _Ticket, index: int, stats: Stats) -> None:
        request = ticket.request
        seed = (request.params.seed + index) % 2**64
        question = Question(
            request.prompt,
            dataclasses.replace(request.params, seed=seed),
            title="",
            reasoning=request.reasoning,
            opened=request.opened,
            within=request.within,
        )
        generation = Generation(self._parts.engine, self._parts.text.tokenizer, question, stats)
        for chunk in generation.chunks(ticket.cancelled):
            if chunk.finish_reason == "cancelled":
                raise CancelledError("the request was cancelled")
            self._touch()
            ticket.emit(Piece(index, chunk))

    def _touch(self) -> None:
        self._counts = dataclasses.replace(
            self._counts, last_progress_s=time.monotonic(), steps=self._counts.steps + 1
        )


def fault(error: Exception) -> LocalLLMError:
    """What those are told whom a fault of the engine costs their answer. Its own words may be
    somebody's: they are not among it."""
    log.error("a fault of the engine", exc_info=error)
    return LocalLLMError("a fault of the engine: this is a fault in localllm, its log says more")


def loaded_model(parts: Parts, name: str, digest: str) -> LoadedModel:
    """What a front end needs to know of an opened model."""
    try:
        template, no_template = parts.chat_template, ""
    except UnsupportedError as e:
        template, no_template = None, e.message
    return LoadedModel(
        name=name,
        n_ctx=parts.engine.n_ctx,
        tokenizer=parts.text.tokenizer,
        chat_template=template,
        digest=digest,
        file_state=parts.file_state,
        architecture=parts.architecture,
        quantization=parts.text.quantization,
        n_params=parts.n_params,
        n_ctx_train=int(parts.text.metadata.get(f"{parts.architecture}.context_length", 0)),
        weight_bytes=parts.weight_bytes,
        title=parts.name,
        engine=parts.engine.name,
        engine_version=parts.engine_version,
        arithmetic=parts.arithmetic,
        isa=parts.isa,
        n_threads=parts.n_threads,
        kv_type=parts.options.kv_type,
        kv_bytes=parts.engine.kv_bytes,
        no_template=no_template,
        recommended=recommended(parts.text.metadata),
    )
