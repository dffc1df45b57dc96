"""Sessions of this process that share one loaded model: several conversations over one pool, each
computed only where it is new. What was computed lies on the disk, too: a conversation that is
opened again, after whatever end of the process, goes on from there (docs/KV_CACHE.md).

A model that only the second engine runs has a `Session` of its own instead, and nothing on the
disk.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from localllm import moments, paths
from localllm.engine.exchange import Chunk, Stats
from localllm.engine.kept_conversations import KeptConversations
from localllm.engine.kv_tier import TierOptions
from localllm.engine.open import OpenOptions, beside_template, open_parts
from localllm.engine.paged import PagedEngine
from localllm.engine.request import Event, Failed, Finished, PromptLogprobs, Request, Ticket
from localllm.engine.service import NativeService
from localllm.engine.transcript_files import TranscriptFiles
from localllm.engine.transcripts import Transcripts
from localllm.errors import ArgumentError, CancelledError
from localllm.params import GenerateParams
from localllm.server import session_request
from localllm.server.security import OWN
from localllm.server.session_request import SessionRequest
from localllm.session import Session, SessionInfo, clip, title_of
from localllm.store.answers import Answer, Fingerprint

N_CONVERSATIONS = 2
"""The pool has room for so many whole contexts, if the memory has."""
FLUSH_SECONDS = 5.0


def _transcripts() -> Transcripts:
    return Transcripts(files=TranscriptFiles(paths.current().kv))


def _kept() -> KeptConversations:
    places = paths.current()
    return KeptConversations(places.kv, places.kept_conversations)


@dataclass
class Keeping:
    """What is kept of the conversations of all models: their tokens, and whose pages are whose."""

    transcripts: Transcripts = field(default_factory=_transcripts)
    conversations: KeptConversations = field(default_factory=_kept)


class Pool:
    """A loaded model; `close` ends its sessions. Use `open_pool`."""

    def __init__(self, service: NativeService, label: str, load_s: float, keeping: Keeping) -> None:
        self.service, self.label, self.load_s = service, label, load_s
        self.keeping = keeping

    def session(
        self, *, continues: bool = False, closed: Callable[[], None] = lambda: None
    ) -> PooledSession:
        """continues: the model was never taught to chat. closed: is called once, at its end."""
        return PooledSession(self, continues=continues, closed=closed)

    @property
    def is_lost(self) -> bool:
        """Whether its file was cut short or written over: no answer comes of it any more."""
        return self.service.lost is not None

    def flush(self) -> None:
        """Waits until what was computed is on the disk, some seconds at the most."""
        self.service.flush(FLUSH_SECONDS)

    def close(self) -> None:
        self.service.close()


def open_pool(
    path: Path,
    keeping: Keeping,
    *,
    engine: str = "auto",
    n_threads: int = 0,
    n_ctx: int = 0,
    kv_type: str = "f16",
    isa: str | None = None,
    digest: str | None = None,
    label: str = "",
    template: str | None = None,
    beside: str = "",
    mmap: bool = False,
    tiers: TierOptions | None = None,
    progress: Callable[[float], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Pool | Session:
    """Loads a model file; see `Session.open` for what it is told and raises. A `Session` where the
    second engine runs it. tiers: where blocks go beside the pool; None: to the disk."""
    started = time.perf_counter()
    if template is None and beside:
        choice = beside_template(path, beside)
        template = choice.template
        if choice.note and notice is not None:
            notice(choice.note)
    tiers = tiers or TierOptions()
    options = OpenOptions(engine, n_threads, n_ctx, kv_type, isa, template, mmap, tiers)
    parts = open_parts(
        path,
        options,
        progress=progress,
        notice=notice,
        n_sequences=N_CONVERSATIONS,
        tells_plan=False,
        digest=digest or "",
    )
    if not isinstance(parts.engine, PagedEngine):
        return Session(parts, time.perf_counter() - started, label, digest)
    try:
        service = NativeService(parts, label, digest or parts.digest)
    except BaseException:
        parts.engine.close()
        raise
    return Pool(service, label, time.perf_counter() - started, keeping)


class PooledSession:
    """See `Session`. One answer at a time; other sessions of the pool may answer meanwhile. A model
    without a template, or that `continues`, goes on with the text of the last message."""

    def __init__(
        self, pool: Pool, *, continues: bool = False, closed: Callable[[], None] = lambda: None
    ) -> None:
        self._pool, self._service, self._closed = pool, pool.service, closed
        self._continues = continues or pool.service.info.chat_template is None
        self.info = SessionInfo(**session_request.about(pool.service.info))
        self.stats = Stats(load_s=pool.load_s)
        self.notes: tuple[str, ...] = ()
        self.answer: Answer | None = None
        self.conversation = ""
        self._n_kept = 0
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None
        self._before = self._service.state()  # when the running answer was asked for

    @property
    def progress_tokens(self) -> tuple[int, int]:
        """See `Session`; an estimate while other sessions of the pool compute, too."""
        stats = self.stats
        if stats.generated_tokens or self._ticket is None:
            return stats.computed_tokens, stats.prompt_tokens - stats.cached_tokens
        computed = self._service.state().computed_tokens - self._before.computed_tokens
        to_do = stats.prompt_tokens - self._n_cached()
        return min(computed, to_do), to_do

    @property
    def context_used(self) -> int:
        return self._n_kept

    @property
    def is_lost(self) -> bool:
        """See `Pool.is_lost`."""
        return self._pool.is_lost

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
        go_on: bool = False,
    ) -> Iterator[Chunk]:
        """See `Session.chat`."""
        if pictures := next((m["images"] for m in messages if m.get("images")), None):
            raise ArgumentError(
                f"{Path(pictures[0]).name} is a picture, which the native engine cannot look at",
                "A model with vision runs with: --engine llama.cpp",
            )
        if self._continues:
            told = f"{self._pool.label} is a base model: it continues the text"
            if any(message["role"] == "system" for message in messages):
                told += ", and its instructions have no place"
            text = "".join(str(m["content"]) for m in messages[-2 if go_on else -1 :])
            yield from self._continued(text, params, told)
            return
        transcripts = self._pool.keeping.transcripts
        asked = session_request.to_answer(
            self._service.info, messages, params, think, OWN, transcripts, go_on=go_on
        )
        yield from self._answer(asked, title_of(messages), raw=False)

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        """See `Session.complete`."""
        yield from self._continued(prompt, params)

    def _continued(self, prompt: str, params: GenerateParams, *notes: str) -> Iterator[Chunk]:
        asked = session_request.to_complete(self._service.info, prompt, params, OWN)
        yield from self._answer(replace(asked, notes=notes), clip(prompt), raw=True)

    def forget(self) -> None:
        """The next prompt shows nothing of what was kept; others may still go on from it."""
        self._n_kept = 0

    def cancel(self) -> None:
        """See `Session.cancel`."""
        self._cancelled.set()
        with self._lock:
            if self._ticket is not None:
                self._ticket.cancel()

    def close(self) -> None:
        self.cancel()
        closed, self._closed = self._closed, lambda: None
        closed()

    def __enter__(self) -> PooledSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, asked: SessionRequest, title: str, *, raw: bool) -> Iterator[Chunk]:
        self.answer, self.notes = None, asked.notes
        request = asked.request
        stats = self.stats = Stats(load_s=self._pool.load_s, prompt_tokens=len(request.prompt))
        hint = "shorten the prompt or raise the context with --ctx"
        self._service.info.check_room(len(request.prompt), hint)
        self._note(request.prompt)
        given: list[Chunk] = []
        if request.params.max_tokens == 0:
            given.append(Chunk("", finish_reason="length"))
        else:
            for chunk in self._chunks(request, stats):
                given.append(chunk)
                if chunk.finish_reason is None:
                    yield chunk
        self._keep(asked, given, title, raw=raw)
        yield given[-1]

    def _chunks(self, request: Request, stats: Stats) -> Iterator[Chunk]:
        """The last one has a finish_reason. Raises what failed."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        began = time.perf_counter()
        self._before = self._service.state()
        try:
            with self._lock:
                if self._cancelled.is_set():
                    yield Chunk("", finish_reason="cancelled")
                    return
                self._ticket = self._service.submit(request, events.put)
            last: Chunk | None = None
            while True:
                event = events.get()
                if isinstance(event, Finished):
                    stats.cached_tokens = event.usage.cached_tokens
                    stats.computed_tokens = stats.prompt_tokens - stats.cached_tokens
                    assert last is not None
                    yield last
                    return
                if isinstance(event, Failed):
                    if self._cancelled.is_set() and isinstance(event.error, CancelledError):
                        yield Chunk("", finish_reason="cancelled")
                        return
                    raise event.error
                if isinstance(event, PromptLogprobs):
                    continue  # no session asks for these
                last = event.chunk
                self._count(last, time.perf_counter() - began)
                if last.finish_reason is None:
                    yield last
        finally:
            with self._lock:
                ticket, self._ticket = self._ticket, None
                self._cancelled.clear()
            if ticket is not None:
                ticket.cancel()  # one that its caller has not read to the end

    def _count(self, chunk: Chunk, seconds: float) -> None:
        stats = self.stats
        stats.cached_tokens = self._n_cached()
        stats.computed_tokens = stats.prompt_tokens - stats.cached_tokens
        if not stats.generated_tokens:
            stats.prompt_s = stats.first_token_s = seconds
        stats.generated_tokens += len(chunk.token_ids)
        stats.reasoning_tokens += len(chunk.token_ids) if chunk.reasoning else 0
        stats.decode_s = seconds - stats.first_token_s
        # The last token was sampled, and not computed.
        self._n_kept = stats.prompt_tokens + stats.generated_tokens - 1

    def _n_cached(self) -> int:
        """Of the running prompt, as far as it is known."""
        found = self._service.state().hit_tokens - self._before.hit_tokens
        return min(found, self.stats.prompt_tokens)

    def _note(self, tokens: Sequence[int]) -> None:
        at = self._service.kept_at(OWN)
        if self.conversation and at is not None:
            self._pool.keeping.conversations.note(self.conversation, at, tokens)

    def _keep(self, asked: SessionRequest, given: list[Chunk], title: str, *, raw: bool) -> None:
        """Makes the record of an answer, and what the next turn can build on."""
        token_ids = tuple(token for chunk in given for token in chunk.token_ids)
        if asked.transcribed is not None:
            self._pool.keeping.transcripts.add_answer(asked.transcribed, token_ids)
        request, info = asked.request, self._service.info
        self._note([*request.prompt, *token_ids])
        self.answer = Answer(
            fingerprint=Fingerprint(
                model_digest=info.digest,
                engine=info.engine_version,
                arithmetic=info.arithmetic,
                kv_type=info.kv_type,
                params=request.params.changed(),
                prompt_ids=request.prompt,
            ),
            model=self._pool.label,
            title=title,
            created=moments.iso(),
            token_ids=token_ids,
            text="".join(chunk.text for chunk in given),
            reasoning="".join(chunk.reasoning for chunk in given),
            finish_reason=given[-1].finish_reason or "",
            opened=request.opened,
            raw=raw,
        )
