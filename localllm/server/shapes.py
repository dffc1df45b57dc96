"""Answers in the shapes of OpenAI's API: whole, and as the pieces of a stream.

Shapes: ChatCompletion, ChatCompletionChunk and Completion of the `openai` package. `token_ids` and
`prompt_token_ids` are vLLM's, `reasoning_content` is llama-server's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localllm.engine.exchange import Chunk, TokenLogprobs
from localllm.engine.request import Usage
from localllm.engine.sampling import Sampled
from localllm.server.text_logprobs import Echoed, TextLogprobs, finite, joined
from localllm.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


@dataclass
class Wishes:
    """What a request asks to see."""

    tokenizer: Tokenizer
    logprobs: int | None = None
    reasoning: bool = True
    token_ids: bool = False
    prompt_logprobs: int | None = None
    echo: tuple[Echoed, ...] = ()  # by prompt: what answers begin with
    n: int = 1


class Shape(Protocol):
    """How one route's answers look. index counts the choices of the HTTP request."""

    prefix: str  # of ids
    whole_object: str
    piece_object: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice that begins a stream."""

    def begun(self, index: int) -> dict[str, Any] | None:
        """The choice that comes before the first piece, once the prompt has been computed."""

    def prompt_logprobs(self, number: int, rows: Sequence[Sampled]) -> None:
        """What the engine tells of the tokens of a prompt but the first."""

    def more(self) -> dict[str, Any]:
        """Further fields of the whole answer."""

    def piece(self, index: int, chunk: Chunk) -> dict[str, Any] | None:
        """The choice of one event; None if there is nothing to say."""

    def whole(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """The choice of a whole answer."""


class ChatShape:
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._rows: Sequence[Sampled] = ()

    def opening(self, index: int) -> dict[str, Any]:
        return _choice(index, delta={"role": "assistant", "content": ""})

    def begun(self, index: int) -> None:
        return None

    def prompt_logprobs(self, number: int, rows: Sequence[Sampled]) -> None:
        self._rows = rows

    def more(self) -> dict[str, Any]:
        return of_prompt(self._wishes, self._rows)

    def piece(self, index: int, chunk: Chunk) -> dict[str, Any] | None:
        delta: dict[str, Any] = {}
        if chunk.reasoning and self._wishes.reasoning:
            delta["reasoning_content"] = chunk.reasoning
        if chunk.text:
            delta["content"] = chunk.text
        shown = bool(delta) or bool(chunk.logprobs) or self._wishes.token_ids
        if not shown and chunk.finish_reason is None:
            return None
        choice = _choice(index, delta=delta, finish_reason=chunk.finish_reason)
        return self._with_tokens(choice, [chunk])

    def whole(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(chunk.text for chunk in chunks),
            "refusal": None,
        }
        reasoning = "".join(chunk.reasoning for chunk in chunks)
        if reasoning and self._wishes.reasoning:
            message["reasoning_content"] = reasoning
        choice = _choice(index, message=message, finish_reason=chunks[-1].finish_reason)
        return self._with_tokens(choice, chunks)

    def _with_tokens(self, choice: dict[str, Any], chunks: Sequence[Chunk]) -> dict[str, Any]:
        wishes = self._wishes
        if wishes.logprobs is not None:
            choice["logprobs"] = {
                "content": [
                    {
                        **_entry(each.text, each.value, wishes.tokenizer.token_bytes(each.token)),
                        "top_logprobs": [_entry(text, value) for text, value in each.top],
                    }
                    for each in _shown(wishes.tokenizer, chunks)
                ],
                "refusal": None,
            }
        if wishes.token_ids:
            choice["token_ids"] = [token for chunk in chunks for token in chunk.token_ids]
        return choice


class TextShape:
    prefix = "cmpl-"
    whole_object = "text_completion"
    piece_object = "text_completion"

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._logprobs: dict[int, TextLogprobs] = {}  # by choice
        self._rows: dict[int, Sequence[Sampled]] = {}  # by prompt

    def prompt_logprobs(self, number: int, rows: Sequence[Sampled]) -> None:
        self._rows[number] = rows

    def more(self) -> dict[str, Any]:
        return {}  # it belongs to the choices: there may be several prompts

    def opening(self, index: int) -> dict[str, Any] | None:
        if self._wishes.logprobs is not None or not self._wishes.echo:
            return None
        return _choice(index, text=self._echo(index))

    def begun(self, index: int) -> dict[str, Any] | None:
        wishes = self._wishes
        if wishes.logprobs is None or not wishes.echo or index in self._logprobs:
            return None
        return {**_choice(index, text=self._echo(index)), "logprobs": self._of_prompt(index)}

    def piece(self, index: int, chunk: Chunk) -> dict[str, Any] | None:
        text = chunk.reasoning + chunk.text
        shown = bool(text) or bool(chunk.logprobs) or self._wishes.token_ids
        if not shown and chunk.finish_reason is None:
            return None
        choice = _choice(index, text=text, finish_reason=chunk.finish_reason)
        if self._wishes.logprobs is not None:
            choice["logprobs"] = self._told(index).of_answer([chunk])
        return self._with_tokens(choice, [chunk])

    def whole(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        text = self._echo(index) + "".join(chunk.reasoning + chunk.text for chunk in chunks)
        choice = _choice(index, text=text, finish_reason=chunks[-1].finish_reason)
        if self._wishes.logprobs is not None:
            before = self._of_prompt(index) if self._wishes.echo else None
            answer = self._told(index).of_answer(chunks)
            choice["logprobs"] = answer if before is None else joined(before, answer)
        choice |= of_prompt(self._wishes, self._rows.get(index // self._wishes.n, ()))
        return self._with_tokens(choice, chunks)

    def _echo(self, index: int) -> str:
        echo = self._wishes.echo
        return echo[index // self._wishes.n].text if echo else ""

    def _told(self, index: int) -> TextLogprobs:
        wishes = self._wishes
        if index not in self._logprobs:
            whole, n_top = bool(wishes.echo), wishes.logprobs or 0
            self._logprobs[index] = TextLogprobs(wishes.tokenizer, n_top, whole=whole)
        return self._logprobs[index]

    def _of_prompt(self, index: int) -> dict[str, Any]:
        number = index // self._wishes.n
        return self._told(index).of_prompt(self._wishes.echo[number], self._rows[number])

    def _with_tokens(self, choice: dict[str, Any], chunks: Sequence[Chunk]) -> dict[str, Any]:
        if self._wishes.token_ids:
            choice["token_ids"] = [token for chunk in chunks for token in chunk.token_ids]
        return choice


@dataclass
class Frame:
    """What surrounds the choices of one HTTP request."""

    shape: Shape
    model: str
    more: dict[str, Any] = field(default_factory=dict)  # further fields of the whole answer
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        self.id = self.shape.prefix + secrets.token_hex(12)
        self.created = int(time.time())

    def whole(self, choices: list[dict[str, Any]], used: dict[str, Any]) -> dict[str, Any]:
        frame = self._frame(self.shape.whole_object, choices)
        return {**frame, "usage": used, **self.more, **self.shape.more()}

    def piece(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._frame(self.shape.piece_object, choices), **more}

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": None,
        }


def counts(n_prompt: int, n_generated: int) -> dict[str, Any]:
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
    }


def usage(parts: Sequence[Usage]) -> dict[str, Any]:
    """The counts of an HTTP request, as a sum over its prompts."""
    prompt = sum(part.prompt_tokens for part in parts)
    generated = sum(part.generated_tokens for part in parts)
    return {
        **counts(prompt, generated),
        "prompt_tokens_details": {"cached_tokens": sum(part.cached_tokens for part in parts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(part.reasoning_tokens for part in parts)
        },
    }


def _choice(index: int, *, finish_reason: str | None = None, **body: Any) -> dict[str, Any]:
    return {"index": index, **body, "logprobs": None, "finish_reason": finish_reason}


def of_prompt(wishes: Wishes, rows: Sequence[Sampled]) -> dict[str, Any]:
    """vLLM's `prompt_logprobs`, if that was asked for: nothing of the first token; of each other
    one, and of the likeliest in its place, by token id. As there, the rank of a token is its place
    among the likeliest that were asked for, and beyond them how many tokens are at least as likely:
    of equal ones the last place."""
    if wishes.prompt_logprobs is None:
        return {}
    found: list[dict[str, Any] | None] = [None]
    for row in rows:
        top = row.top[: wishes.prompt_logprobs]
        ranks = {row.token: row.rank, **{token: at for at, (token, _) in enumerate(top, 1)}}
        assert row.logprob is not None  # it was asked for
        found.append(
            {
                str(token): {
                    "logprob": finite(value),
                    "rank": ranks[token],
                    "decoded_token": wishes.tokenizer.token_bytes(token).decode("utf-8", "replace"),
                }
                for token, value in ((row.token, row.logprob), *top)
            }
        )
    return {"prompt_logprobs": found}


def _shown(tokenizer: Tokenizer, chunks: Sequence[Chunk]) -> list[TokenLogprobs]:
    """The tokens with log probabilities that are part of the text: not the one that ends it."""
    return [
        each for chunk in chunks for each in chunk.logprobs if each.token not in tokenizer.stop_ids
    ]


def _entry(text: str, value: float, data: bytes | None = None) -> dict[str, Any]:
    if data is None and _REPLACEMENT not in text:
        data = text.encode()
    return {"token": text, "logprob": finite(value), "bytes": None if data is None else [*data]}
