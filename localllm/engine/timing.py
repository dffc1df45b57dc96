"""Timed runs of an engine on made-up tokens, for `localllm bench`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

#: Token numbers come from the beginning of the vocabulary, which every model has.
_MOST_IDS = 1000


class TimedEngine(Protocol):
    """The part of `Engine` that is timed."""

    @property
    def n_ctx(self) -> int: ...
    def begin(self, prompt: Sequence[int]) -> int: ...
    def prefill(
        self,
        tokens: Sequence[int],
        sampler: Any,
        n_logprobs: int | None,
        progress: Callable[[int], None],
    ) -> Any: ...
    def decode(
        self,
        token: int,
        k: int,
        sampler: Any,
        stop_ids: Sequence[int],
        n_logprobs: int | None,
    ) -> Sequence[Any]: ...
    def forget(self) -> None: ...


def time_prefill(engine: TimedEngine, sampler: Any, n_vocab: int, n_tokens: int) -> float:
    """Seconds from an empty context to the token after a prompt of n_tokens. Raises
    `CancelledError`."""
    engine.forget()
    began = time.perf_counter()
    _fill(engine, sampler, n_vocab, n_tokens)
    seconds = time.perf_counter() - began
    engine.forget()
    return seconds


def time_decode(
    engine: TimedEngine, sampler: Any, n_vocab: int, depth: int, n_tokens: int
) -> Iterator[float]:
    """Fills an empty context with max(depth, 1) tokens, then yields the seconds of n_tokens more
    steps, until the context is full. No token ends it. Raises `CancelledError`."""
    engine.forget()
    token = _fill(engine, sampler, n_vocab, max(depth, 1))
    used = max(depth, 1)
    try:
        while used + n_tokens <= engine.n_ctx:
            left, began = n_tokens, time.perf_counter()
            while left:
                sampled = engine.decode(token, left, sampler, (), None)
                token = sampled[-1].token
                left -= len(sampled)
            seconds = time.perf_counter() - began
            used += n_tokens
            yield seconds
    finally:
        engine.forget()


def _fill(engine: TimedEngine, sampler: Any, n_vocab: int, n_tokens: int) -> int:
    """Computes a prompt; returns the token that was sampled after it."""
    prompt = [1 + 7 * i % min(_MOST_IDS, n_vocab - 1) for i in range(n_tokens)]
    kept = engine.begin(prompt)
    return int(engine.prefill(prompt[kept:], sampler, None, lambda done: None).token)
