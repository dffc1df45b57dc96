"""Timed runs of an engine: what is asked of it, what is counted, what is left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from localllm.engine import timing
from localllm.errors import CancelledError


class Engine:
    """Keeps what was computed; a step gives at most 5 tokens and takes 10 ms."""

    n_ctx = 100

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.log: list[Any] = []

    def begin(self, prompt: Sequence[int]) -> int:
        assert self.kept == []
        return 0

    def prefill(self, tokens: Any, sampler: Any, n_logprobs: Any, progress: Any) -> Any:
        progress(len(tokens))
        self.kept += tokens
        self.log.append(("prefill", len(tokens), sampler))
        time.sleep(0.01)
        return SimpleNamespace(token=7)

    def decode(self, token: int, k: int, sampler: Any, stop_ids: Any, n_logprobs: Any) -> Any:
        assert len(stop_ids) == 0 and token == 7 + len(self.log) - 1
        n = min(k, 5)
        self.kept += [token] * n
        self.log.append(("decode", n, sampler))
        time.sleep(0.01)
        return [SimpleNamespace(token=0)] * (n - 1) + [SimpleNamespace(token=token + 1)]

    def forget(self) -> None:
        self.kept = []


def test_prefill() -> None:
    engine = Engine()
    engine.kept = [1, 2, 3]
    assert timing.time_prefill(engine, "greedy", 50, 64) >= 0.01
    assert engine.log == [("prefill", 64, "greedy")] and engine.kept == []


def test_tokens_are_of_the_vocabulary() -> None:
    for n_vocab in (2, 50, 100_000):
        engine = Engine()
        engine.forget = lambda: None  # type: ignore[method-assign]
        timing.time_prefill(engine, None, n_vocab, 3000)
        assert all(1 <= token < n_vocab for token in engine.kept)
        assert len(set(engine.kept)) == {2: 1, 50: 7, 100_000: 1000}[n_vocab]


@pytest.mark.parametrize(("depth", "filled"), [(0, 1), (40, 40)])
def test_decode(depth: int, filled: int) -> None:
    engine = Engine()
    steps = timing.time_decode(engine, "greedy", 50, depth, 12)
    first = next(steps)
    # Filling is not counted; 12 tokens come in steps of 5, 5 and 2, which are.
    assert engine.log[0] == ("prefill", filled, "greedy")
    assert [n for _, n, _ in engine.log[1:]] == [5, 5, 2]
    assert first >= 0.03
    assert len(engine.kept) == filled + 12
    rest = list(steps)
    assert 1 + len(rest) == (100 - filled) // 12  # until the context is full
    assert engine.kept == []


def test_ending_early_forgets() -> None:
    engine = Engine()
    steps = timing.time_decode(engine, None, 50, 10, 5)
    next(steps)
    assert engine.kept
    steps.close()  # type: ignore[attr-defined]
    assert engine.kept == []


def test_cancel_passes_through() -> None:
    class Cancelled(Engine):
        def decode(self, *args: Any) -> Any:
            raise CancelledError("stopped")

    engine = Cancelled()
    with pytest.raises(CancelledError):
        next(timing.time_decode(engine, None, 50, 10, 5))
    assert engine.kept == []
