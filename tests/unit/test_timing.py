"""Timed runs of an engine: what is asked of it, what is counted, what is left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from localllm.engine import timing
from localllm.errors import CancelledError


@pytest.fixture(autouse=True)
def plain_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sampled is the engine's matter; here only that it is greedy."""
    monkeypatch.setattr(timing, "sampler_of", lambda params, tokenizer: params.temperature)


def vocabulary(n_vocab: int = 50) -> Any:
    return SimpleNamespace(n_vocab=n_vocab)


class Engine:
    """Keeps what was computed, as engines do; a step gives at most 5 tokens and takes 10 ms."""

    n_ctx = 100

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.log: list[Any] = []

    def begin(self, prompt: Sequence[int]) -> int:
        n = 0
        while n < len(prompt) - 1 and n < len(self.kept) and self.kept[n] == prompt[n]:
            n += 1
        del self.kept[n:]
        return n

    def prefill(self, tokens: Any, sampler: Any, n_logprobs: Any, progress: Any) -> Any:
        progress(len(tokens))
        self.kept += tokens
        self.computed = list(tokens)
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


def test_prefill() -> None:
    engine = Engine()
    engine.kept = [1, 8, 15]  # as after a run before
    for _ in range(2):
        engine.log.clear()
        assert timing.time_prefill(engine, vocabulary(), 64) >= 0.01
        assert engine.log == [("prefill", 64, 0)] and engine.kept == []


def test_tokens_are_of_the_vocabulary() -> None:
    for n_vocab in (2, 50, 100_000):
        engine = Engine()
        timing.time_prefill(engine, vocabulary(n_vocab), 3000)
        assert len(engine.computed) == 3000
        assert all(1 <= token < n_vocab for token in engine.computed)
        assert len(set(engine.computed)) == {2: 1, 50: 7, 100_000: 1000}[n_vocab]


@pytest.mark.parametrize(("depth", "filled"), [(0, 1), (40, 40)])
def test_decode(depth: int, filled: int) -> None:
    engine = Engine()
    steps = timing.time_decode(engine, vocabulary(), depth, 12)
    first = next(steps)
    # Filling is not counted; 12 tokens come in steps of 5, 5 and 2, which are.
    assert engine.log[0] == ("prefill", filled, 0)
    assert [n for _, n, _ in engine.log[1:]] == [5, 5, 2]
    assert first >= 0.03
    assert len(engine.kept) == filled + 12
    rest = list(steps)
    assert 1 + len(rest) == (100 - filled) // 12  # until the context is full
    assert engine.kept == []


def test_ending_early_forgets() -> None:
    engine = Engine()
    steps = timing.time_decode(engine, vocabulary(), 10, 5)
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
        next(timing.time_decode(engine, vocabulary(), 10, 5))
    assert engine.kept == []
