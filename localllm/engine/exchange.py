"""What is asked of an engine, and what an answer comes in: pieces of text, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localllm.engine.transcripts import Transcribed
    from localllm.params import GenerateParams
    from localllm.text.reasoning import ReasoningFormat


@dataclass(frozen=True)
class Question:
    """What is to be answered, as tokens."""

    prompt: Sequence[int]
    params: GenerateParams
    title: str  # the beginning of it, for people
    reasoning: ReasoningFormat | None = None  # how the answer marks reasoning, if it does
    opened: bool = False  # the prompt ends inside a reasoning block
    within: bool = False  # it ends inside the text of an answer, which this one goes on with
    raw: bool = False  # a text to go on with, without a template
    transcribed: Transcribed | None = None  # where the next prompt may go on from


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of the model's raw probabilities: of a token of the answer, and of the
    likeliest ones in its place, best first, as (text, value)."""

    token: int
    text: str
    value: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Chunk:
    """A piece of the answer, of its reasoning, or of both. finish_reason is set on the last one:
    "stop" (the model ended, or a stop string came), "length" (max_tokens or the context),
    "cancelled"."""

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    reasoning: str = ""
    #: Where params.logprobs asks: of tokens whose text has come, in their order. The last piece has
    #: those of all others, but none of tokens that begin behind the cut of a stop string.
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass
class Stats:
    """Counts, and seconds, of the last answer (load_s: of the session).

    prompt_tokens counts the whole prompt, cached_tokens those of it that were kept from before,
    computed_tokens those that were computed; it rises while a prompt is read.
    """

    load_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    prompt_s: float = 0.0
    first_token_s: float = 0.0
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    decode_s: float = 0.0
