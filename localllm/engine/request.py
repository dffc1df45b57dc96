"""The contract between those who ask and the engine that serves many at once.

A front end submits a `Request` and is told of its pieces by `Event`s, from the engine's thread. The
last event is `Finished` or `Failed`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from localllm.errors import ContextFullError

if TYPE_CHECKING:
    from localllm.engine.exchange import Chunk
    from localllm.engine.kept_conversations import KeptAt
    from localllm.engine.sampling import Sampled
    from localllm.errors import LocalLLMError
    from localllm.params import GenerateParams
    from localllm.text.chat_template import ChatTemplate
    from localllm.text.reasoning import ReasoningFormat
    from localllm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Request:
    """What a front end submits."""

    prompt: tuple[int, ...]
    params: GenerateParams  # max_tokens, stop, seed, samplers, logprobs
    n: int = 1  # answers; choice i uses params.seed + i
    priority: int = 0  # higher is served first
    salt: bytes = b""  # partition of the prefix cache
    may_store: bool = True  # False: nothing of it stays in the cache once it ends
    reasoning: ReasoningFormat | None = None  # how the answer marks reasoning, if it does
    opened: bool = False  # the prompt ends inside a reasoning block
    within: bool = False  # it ends inside the text of an answer, which this one goes on with
    #: Log probabilities of the prompt's tokens, and so many likeliest ones in the place of each.
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of a request, over all its answers."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True)
class Timings:
    """Seconds: in the queue, from there to the first token, and from the first to the last."""

    queued_s: float = 0.0
    prompt_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class PromptLogprobs:
    """Comes before the first piece where `Request.prompt_logprobs` asks for it. rows: of each token
    of the prompt but the first, which has nothing in front of it."""

    rows: tuple[Sampled, ...]


@dataclass(frozen=True)
class Piece:
    """A piece of answer number `index`."""

    index: int
    chunk: Chunk


@dataclass(frozen=True)
class Finished:
    usage: Usage
    timings: Timings


@dataclass(frozen=True)
class Failed:
    error: LocalLLMError


Event = PromptLogprobs | Piece | Finished | Failed
Emit = Callable[[Event], None]


class Ticket(Protocol):
    """A submitted request."""

    @property
    def id(self) -> str: ...

    def cancel(self) -> None:
        """Ends it within one step. From any thread, as often as you like."""


@dataclass(frozen=True)
class LoadedModel:
    """What a front end needs to know of a model."""

    name: str
    n_ctx: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: it only continues texts
    digest: str = ""
    file_state: str = ""  # see `Parts.file_state`
    architecture: str = ""
    quantization: str = ""
    n_params: int = 0
    n_ctx_train: int = 0
    weight_bytes: int = 0
    title: str = ""  # of the file
    engine: str = ""
    engine_version: str = ""
    arithmetic: int = 0  # its version, 0 if the engine promises none
    isa: str = ""
    n_threads: int = 0
    kv_type: str = ""
    kv_bytes: int = 0
    no_template: str = ""  # why there is none
    recommended: Mapping[str, Any] = field(default_factory=dict)
    max_requests: int = 0  # that the queue and the seats take together; 0: no limit
    uses_disk: bool = False  # what is computed of conversations is kept there

    def check_room(self, n_prompt: int, hint: str | None = None) -> None:
        """Raises `ContextFullError` for a prompt that leaves no room for an answer."""
        if n_prompt >= self.n_ctx:
            raise ContextFullError.of(n_prompt, self.n_ctx, hint)

    @property
    def partition(self) -> bytes:
        """What answers of no other model share: tokens of a text may be other ones there."""
        return f"{self.digest} {self.file_state}".encode()

    @property
    def kept_digest(self) -> str:
        """Under which tokens of conversations are kept on the disk; "": they are not."""
        return self.digest if self.uses_disk else ""


#: `tokens_per_s` looks back this far.
RATE_SECONDS = 5.0


@dataclass(frozen=True)
class ServiceState:
    """Figures of one moment; the counts only grow."""

    running: int = 0
    waiting: int = 0
    blocks_free: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    tokens_per_s: float = 0.0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0  # of prompts and answers
    generated_tokens: int = 0
    restored_tokens: int = 0  # of prompts and answers: back from the tiers
    kv_ram_bytes: int = 0  # what the pool gave up
    kv_disk_bytes: int = 0  # of all models
    kv_disk_pages: int = 0
    kv_disk_written: int = 0  # pages
    kv_disk_damaged: int = 0  # pages that were removed
    kv_disk_evicted: int = 0  # pages
    kv_disk_skipped: int = 0  # pages that were not written
    kv_disk_stopped: int = 0  # 1: nothing is written any more
    last_progress_s: float = 0.0  # time.monotonic() of it

    def seen_at(self, now: float, *, running: int, waiting: int) -> ServiceState:
        """The same with what there is to do now: no speed, once nothing was done for a while."""
        idle = not running and not waiting and now - self.last_progress_s > RATE_SECONDS
        rate = 0.0 if idle else self.tokens_per_s
        return dataclasses.replace(self, running=running, waiting=waiting, tokens_per_s=rate)

    def stalled_s(self, now: float) -> float:
        """Seconds for which there is work and no progress."""
        if not self.running and not self.waiting:
            return 0.0
        return max(0.0, now - self.last_progress_s)


class Service(Protocol):
    """One loaded model that serves many requests at once."""

    info: LoadedModel

    @property
    def lost(self) -> LocalLLMError | None:
        """Why it answers nothing any more: another program cut the file short that its weights are
        looked up in, or wrote to it. All requests of that moment have failed."""

    def submit(self, request: Request, emit: Emit) -> Ticket:
        """Queues a request. `emit` is called from the engine's thread and must not block. Raises
        `ContextFullError` or `ArgumentError` for what can never be served, `QueueFullError`."""

    def state(self) -> ServiceState: ...

    def kept_at(self, salt: bytes) -> KeptAt | None:
        """Where pages of requests with this salt lie on the disk; None: they do not."""

    def close(self) -> None: ...
