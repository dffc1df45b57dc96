"""Steps that are cancelled anywhere, on more threads than CPUs: none hangs, and what is computed
again has the bits of a run that nobody disturbed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reference.engine import logits_of, random_tokens, runner_of

from localllm.engine.runner import Feed, Model, Runner
from localllm.errors import CancelledError

N_THREADS = 5
SIZES = (1, 1, 1, 2, 5, 8, 9, 16, 17, 70)


class Canceller:
    """Cancels the runner's steps at random times from a thread of its own, while it is armed."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._armed, self._ended = runner, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        rng = random.Random(1)
        while not self._ended.wait(rng.random() * 0.002):
            if self._armed.is_set():
                self._runner.cancel()

    def arm(self, on: bool) -> None:
        (self._armed.set if on else self._armed.clear)()

    def __enter__(self) -> Canceller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_cancelled_steps_leave_no_trace(
    arch: str, kv: str, tiny: Callable[[str, str], Path]
) -> None:
    with Model.load(tiny(arch, "Q4_0"), n_threads=N_THREADS) as m:
        tokens = [random_tokens(150, m.info.n_vocab, seed=s) for s in range(3)]
        want = [logits_of(m, t, kv=kv) for t in tokens]
        rng, n_cancelled = random.Random(2), 0
        with runner_of(m, kv, max_sequences=3) as runner, Canceller(runner) as canceller:
            sequences = [runner.new_sequence() for _ in tokens]
            while any(s.n_computed < 150 for s in sequences):
                feeds, rows = [], []
                for i, s in enumerate(sequences):
                    end = min(150, s.n_computed + rng.choice(SIZES))
                    if end > s.n_computed and rng.random() < 0.7:
                        feeds.append(Feed(s, tokens[i][s.n_computed : end]))
                        rows.append(want[i][end - 1])
                if not feeds:
                    continue
                for attempt in range(1000):
                    canceller.arm(attempt < 5)
                    if attempt == 0 and rng.random() < 0.2:
                        runner.cancel()  # seen before the first layer
                    try:
                        result = runner.step(feeds, want_logits=True)
                        break
                    except CancelledError:
                        n_cancelled += 1
                        runner.reset_cancel()
                assert result.logits is not None
                np.testing.assert_array_equal(result.logits, np.stack(rows))
        assert n_cancelled > 0
