"""Timed runs of an engine: what is asked of it, what is counted, what is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localllm.engine import timing
from localllm.errors import CancelledError
from localllm.params import GenerateParams
from localllm.session import Session


@pytest.fixture(autouse=True)
def plain_sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sampled is the engine's matter; here only that it is greedy."""
    if "tiny" not in request.fixturenames:
        monkeypatch.setattr(timing, "Sampler", lambda params, n_vocab: params.temperature)


class Engine:
    """Keeps what was computed, as engines do; a step gives at most 5 tokens and takes 10 ms."""

    n_ctx = 100

    @property
    def n_kept(self) -> int:
        return len(self.kept)

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
        self.log.append(("prefill", len(tokens), sampler))
        self.sampled = 7
        time.sleep(0.01)
        return SimpleNamespace(token=7)

    def decode(self, token: int, k: int, sampler: Any, stop_ids: Any, n_logprobs: Any) -> Any:
        assert len(stop_ids) == 0 and token == self.sampled  # each goes on from the one before
        self.sampled += 1
        n = min(k, 5)
        self.kept += [token] * n
        self.log.append(("decode", n, sampler))
        time.sleep(0.01)
        return [SimpleNamespace(token=0)] * (n - 1) + [SimpleNamespace(token=token + 1)]


def test_prefill_starts_from_nothing() -> None:
    engine = Engine()
    for _ in range(3):  # the same prompt is kept from the run before
        engine.log.clear()
        assert timing.time_prefill(engine, 50, 64) >= 0.01
        assert engine.log == [("prefill", 64, 0)] and len(engine.kept) == 64


def test_no_memory_is_given_back_between_runs() -> None:
    """A context that is made anew would be timed with the prompt."""
    engine = Engine()
    timing.time_prefill(engine, 50, 64)
    next(timing.time_decode(engine, 50, 10, 5))
    assert not hasattr(engine, "forget")


def test_tokens_are_of_the_vocabulary() -> None:
    for n_vocab in (1, 50, 100_000):
        engine = Engine()
        timing.time_prefill(engine, n_vocab, 3000)
        assert len(engine.kept) == 3000
        assert all(0 <= token < n_vocab for token in engine.kept)


@pytest.mark.parametrize(("depth", "filled"), [(0, 1), (40, 40)])
def test_decode(depth: int, filled: int) -> None:
    engine = Engine()
    engine.kept = [3, 3, 3]
    steps = timing.time_decode(engine, 50, depth, 12)
    first = next(steps)
    # Filling is not counted; 12 tokens come in steps of 5, 5 and 2, which are.
    assert engine.log[0] == ("prefill", filled, 0)
    assert [n for _, n, _ in engine.log[1:]] == [5, 5, 2]
    assert first >= 0.03
    assert len(engine.kept) == filled + 12
    rest = list(steps)
    assert 1 + len(rest) == (100 - filled) // 12  # until the context is full


def test_cancel_passes_through() -> None:
    class Cancelled(Engine):
        def decode(self, *args: Any) -> Any:
            raise CancelledError("stopped")

    with pytest.raises(CancelledError):
        next(timing.time_decode(Cancelled(), 50, 10, 5))


def test_a_session_is_timed_and_cancelled(tiny: Callable[[str, str], Path]) -> None:
    with Session.open(tiny("gemma3", "Q8_0"), n_threads=1) as session:
        asked = GenerateParams(seed=1, max_tokens=8)
        before = "".join(chunk.text for chunk in session.complete("abc", asked))
        assert session.time_prefill(64) > 0
        steps = session.time_decode(64, 8)
        assert next(steps) > 0 and next(steps) > 0
        session.cancel()  # between two runs: the next one must see it
        with pytest.raises(CancelledError):
            next(steps)
        session.cancel()
        with pytest.raises(CancelledError):
            session.time_prefill(64)
        assert session.time_prefill(64) > 0
        assert "".join(chunk.text for chunk in session.complete("abc", asked)) == before
