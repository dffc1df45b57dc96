"""A request in the engine, and its answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localllm.engine.answer_text import AnswerText
from localllm.engine.blocks import BlockTable, SequenceState
from localllm.engine.disk_tier import Fetch
from localllm.engine.prefix_cache import Mark
from localllm.engine.prompt_logprobs import PromptRows
from localllm.engine.request import Emit, Request
from localllm.engine.sampling import Sampler, sampler_of
from localllm.engine.scheduler import Entry, rank
from localllm.text.tokenizer import Tokenizer


@dataclass(eq=False, kw_only=True)
class Choice(Entry):
    """One answer of a request. Its tokens are the request's own prompt until it has others."""

    job: Job
    index: int
    answer: AnswerText
    sampler: Sampler
    mark: Mark | None = None  # what of it is in the prefix cache
    n_cached: int = 0  # tokens of the prompt that were there at its first begin
    fetch: Fetch | None = None  # what it is held for
    rows: PromptRows | None = None  # what is asked of its prompt, until that is told

    @property
    def only_decodes(self) -> bool:
        return self.n_pending == 1 and self.rows is None and self.answer.n_left > 0

    @property
    def findable(self) -> Sequence[int]:
        """Tokens of which all but the last need not be computed, if they are known."""
        return self.tokens if self.rows is None else self.tokens[: self.rows.n_reusable + 1]

    def add(self, tokens: list[int]) -> None:
        if isinstance(self.tokens, list):
            self.tokens += tokens
        else:
            self.tokens = [*self.tokens, *tokens]


@dataclass(eq=False)
class Job:
    """A request with its first answer. The others are made once its prompt is computed: until then
    it takes the same memory however many they are."""

    request: Request
    emit: Emit
    arrival: int
    tokenizer: Tokenizer
    n_ctx: int
    table: Callable[[], BlockTable]
    submitted_s: float = field(default_factory=time.monotonic)
    choices: list[Choice] = field(default_factory=list)
    n_open: int = 0  # answers that have not ended
    began_s: float | None = None
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        """Raises `ArgumentError` for parameters or tokens out of range."""
        request = self.request
        self.n_open = request.n
        first = self.add_choice()
        first.holds_last = request.n > 1
        if request.prompt_logprobs is not None:
            first.rows = PromptRows(request.prompt, request.prompt_logprobs)
            first.is_dear = True

    def add_choice(self) -> Choice:
        """The next one of its answers."""
        request, index = self.request, len(self.choices)
        params = dataclasses.replace(request.params, seed=(request.params.seed + index) % 2**64)
        sampler = sampler_of(params, self.tokenizer)
        sampler.accept(request.prompt)
        answer = AnswerText(
            self.tokenizer,
            request.params,
            self.n_ctx - len(request.prompt),
            reasoning=request.reasoning,
            opened=request.opened,
            within=request.within,
        )
        choice = Choice(
            rank(self.arrival, request.priority, index),
            request.prompt,
            SequenceState(self.table()),
            job=self,
            index=index,
            answer=answer,
            sampler=sampler,
        )
        self.choices.append(choice)
        return choice
