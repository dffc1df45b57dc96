"""From a prompt to the pieces of an answer: the loop that runs steps and turns tokens into text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from localllm.engine.engine import Engine
from localllm.engine.exchange import Chunk, Question, Stats, TokenLogprobs
from localllm.engine.sampling import Sampled, sampler_of
from localllm.text.answer_stream import AnswerStream
from localllm.text.tokenizer import Tokenizer

#: A native run of decode steps may keep the caller waiting this long.
RUN_SECONDS = 0.03
MAX_RUN_STEPS = 16


class Generation:
    """One answer: what runs it, and how far its prompt is."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, question: Question, stats: Stats
    ) -> None:
        """`stats` is kept up to date."""
        self._engine, self._tokenizer = engine, tokenizer
        self._question, self._stats = question, stats
        self._stop_ids = sorted(tokenizer.stop_ids)

    def chunks(self, cancelled: threading.Event) -> Iterator[Chunk]:
        """The pieces of the answer; the last one has a finish reason. Raises `CancelledError` if it
        was cancelled before its first token."""
        question, stats = self._question, self._stats
        prompt, params = question.prompt, question.params
        sampler = sampler_of(params, self._tokenizer)
        stream = AnswerStream(
            self._tokenizer,
            reasoning=question.reasoning,
            opened=question.opened,
            stop=params.stop,
        )
        started = time.perf_counter()
        stats.cached_tokens = self._engine.begin(prompt)
        new = prompt[stats.cached_tokens :]

        def progress(n_done: int) -> None:
            stats.computed_tokens = n_done

        sampler.accept([token for token in prompt if token >= 0])  # a picture's ids are below
        sampled = [self._engine.prefill(new, sampler, params.logprobs, progress)]
        stats.prompt_s = stats.first_token_s = time.perf_counter() - started
        room = self._engine.n_ctx - len(prompt)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        step_s = RUN_SECONDS
        while True:
            chunk = self._chunk(sampled, stream, at_limit=limit, cancelled=cancelled)
            stats.decode_s = time.perf_counter() - started - stats.prompt_s
            yield chunk
            if chunk.finish_reason is not None:
                return
            k = max(1, min(int(RUN_SECONDS / step_s), MAX_RUN_STEPS))
            k = min(k, limit - stats.generated_tokens)
            began = time.perf_counter()
            last = chunk.token_ids[-1]
            sampled = self._engine.decode(last, k, sampler, self._stop_ids, params.logprobs)
            step_s = (time.perf_counter() - began) / len(sampled)

    def _chunk(
        self,
        sampled: list[Sampled],
        stream: AnswerStream,
        *,
        at_limit: int,
        cancelled: threading.Event,
    ) -> Chunk:
        """What the steps of a run add. A stop in the middle of it drops the tokens behind."""
        stats = self._stats
        text, reasoning, reason = "", "", None
        tokens: list[int] = []
        for each in sampled:
            stats.generated_tokens += 1
            tokens.append(each.token)
            if each.token in self._tokenizer.stop_ids:
                reason = "stop"
                break
            delta = stream.feed(each.token)
            text += delta.text
            reasoning += delta.reasoning
            stats.reasoning_tokens += bool(delta.reasoning)
            if delta.stopped:
                reason = "stop"
                break
        if reason is None and stats.generated_tokens >= at_limit:
            reason = "length"
        if reason is None and cancelled.is_set():
            reason = "cancelled"
        if reason is not None:
            delta = stream.finish()
            text, reasoning = text + delta.text, reasoning + delta.reasoning
            reason = "stop" if delta.stopped else reason
        logprobs = self._logprobs(sampled[: len(tokens)])
        return Chunk(text, tuple(tokens), reason, reasoning, logprobs)

    def _logprobs(self, sampled: Sequence[Sampled]) -> tuple[TokenLogprobs, ...]:
        return tuple(
            TokenLogprobs(
                self._piece(each.token),
                each.logprob,
                tuple((self._piece(token), value) for token, value in each.top),
            )
            for each in sampled
            if each.logprob is not None
        )

    def _piece(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
