"""From a prompt to the pieces of an answer: the loop that runs steps and turns tokens into text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from localllm.engine.answer_text import AnswerText
from localllm.engine.engine import Engine
from localllm.engine.exchange import Chunk, Question, Stats
from localllm.engine.sampling import sampler_of
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
        answer = AnswerText(
            self._tokenizer,
            params,
            self._engine.n_ctx - len(prompt),
            reasoning=question.reasoning,
            opened=question.opened,
            within=question.within,
        )
        started = time.perf_counter()
        stats.cached_tokens = self._engine.begin(prompt)
        new = prompt[stats.cached_tokens :]

        def progress(n_done: int) -> None:
            stats.computed_tokens = n_done

        sampler.accept([token for token in prompt if token >= 0])  # a picture's ids are below
        sampled = [self._engine.prefill(new, sampler, params.logprobs, progress)]
        stats.prompt_s = stats.first_token_s = time.perf_counter() - started
        step_s = RUN_SECONDS
        while True:
            chunk = answer.feed(sampled, cancelled=cancelled.is_set())
            stats.generated_tokens = answer.n_generated
            stats.reasoning_tokens = answer.n_reasoning
            stats.decode_s = time.perf_counter() - started - stats.prompt_s
            yield chunk
            if chunk.finish_reason is not None:
                return
            k = min(run_steps(step_s), answer.n_left)
            began = time.perf_counter()
            last = chunk.token_ids[-1]
            sampled = self._engine.decode(last, k, sampler, self._stop_ids, params.logprobs)
            step_s = (time.perf_counter() - began) / len(sampled)


def run_steps(step_s: float) -> int:
    """Decode steps of step_s seconds that may run natively before anybody is told."""
    return max(1, min(int(RUN_SECONDS / step_s), MAX_RUN_STEPS))
