"""The cost of steps: what is made of it, and that it is measured once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localllm.engine import cost_curve
from localllm.engine.cost_curve import LEAST_BESIDE, CostCurve, kept, measure, measured
from localllm.engine.runner import Model, Runner

#: A step costs 10 ms and 1 ms for each token beyond the 16th.
CURVE = CostCurve((1, 16, 32, 64, 128), (0.010, 0.010, 0.026, 0.058, 0.122))


def test_costs_between_sizes() -> None:
    assert CURVE.cost(1) == CURVE.cost(10) == 0.010
    assert CURVE.cost(24) == pytest.approx(0.018)
    assert CURVE.cost(256) == pytest.approx(0.250)
    assert CostCurve((1,), (0.5,)).cost(4) == 2.0


def test_budgets() -> None:
    slow = CostCurve(CURVE.sizes, tuple(10 * each for each in CURVE.seconds))
    assert slow.budget(4, 128) == 20  # 145 ms
    assert slow.budget(20, 128) == 20 + LEAST_BESIDE  # 140 ms would be 203 ms
    assert CURVE.budget(4, 128) == 16 + 30  # 10 ms and a pause
    assert CURVE.budget(4, 128, dearer=3) == 16 + 10
    assert CURVE.budget(100, 128) == 128 and CURVE.budget(124, 128) == 128
    assert CURVE.budget(4, 10) == 10
    assert CURVE.budget(0, 128) == 16 and CURVE.budget(0, 8) == 8
    assert CostCurve((1, 2), (1.0, 1.1)).budget(0, 512) == 512  # not measured that far
    assert CostCurve((1,), (1.0,)).budget(0, 512) == 512


def test_budgets_with_short_prompts() -> None:
    assert CURVE.short_budget(4, 128) == 4 + 16  # 0.63 ms each; of 32, 0.81
    assert CURVE.short_budget(120, 128) == 128 and CURVE.short_budget(2, 8) == 8
    rising = CostCurve((1, 8, 64, 512), (0.005, 0.010, 0.022, 0.164))  # 0.34 ms of 64, 0.32 of 512
    assert rising.short_budget(8, 512) == rising.short_budget(30, 512) == 388  # 125 ms
    slower = CostCurve(rising.sizes, tuple(8 * each for each in rising.seconds))
    assert slower.short_budget(8, 512) == 72  # 176 ms and what the others take
    dear = CostCurve((1, 8, 64, 512), (0.005, 0.010, 0.022, 0.300))  # 0.59 ms of 512
    assert dear.short_budget(8, 512) == 72 and dear.short_budget(8, 60) == 40
    # Whoever decodes takes a fourth of what prompts take, if that is done in half a second.
    assert slower.short_budget(30, 512) == 150 and slower.short_budget(100, 512) == 191
    # How far tokens become cheaper is not known.
    few_sizes = CostCurve((1, 2), (0.100, 0.102))
    assert few_sizes.short_budget(1, 512) == 1 + 32
    assert CostCurve((1,), (0.1,)).short_budget(3, 512) == 3 + 32


@pytest.mark.parametrize(
    ("one_s", "reaches", "at_most_s"),
    [(0.0005, 512, 0.8), (0.0035, 256, 0.8), (0.027, 64, 0.9), (0.095, 32, 1.0), (0.2, 16, 1.0)],
)
def test_it_reaches_steps_whose_tokens_are_cheap(
    one_s: float, reaches: int, at_most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a step takes as long as one of SmolLM2 or of 1B, or of a larger model."""
    now, timed = [0.0], []

    def step_seconds(runner: object, n_tokens: int) -> float:
        seconds = one_s * max(1.0, n_tokens / 8)
        timed.append(n_tokens)
        now[0] += seconds
        return seconds

    monkeypatch.setattr(cost_curve, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(cost_curve, "_step_seconds", step_seconds)
    runner: Any = SimpleNamespace(max_batch_tokens=512)
    curve = measure(runner)
    assert curve.sizes[0] == 1 and curve.sizes[-1] == max(timed) == reaches
    assert now[0] <= at_most_s + 1e-9
    assert curve.short_budget(2, 512) >= 2 + 32
    # What takes twice as long as was thought is not waited for.
    monkeypatch.setattr(
        cost_curve, "_step_seconds", lambda r, n: step_seconds(r, n if n == 1 else 2 * n)
    )
    now[0] = 0.0
    measure(runner)
    assert now[0] <= at_most_s + 0.5


def test_it_is_measured_once(
    tiny: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(tiny("llama", "F32"), n_threads=1) as model:
        runner = Runner(model, n_ctx_tokens=256, max_batch_tokens=64)
        curve = measure(runner)
        assert curve.sizes == (1, 2, 4, 8, 16, 32, 64)[: len(curve.sizes)]
        assert list(curve.seconds) == sorted(curve.seconds) and curve.seconds[0] > 0
        assert measure(runner, 0.0).sizes == (1,)
        assert runner.blocks.n_available(0) == runner.blocks.capacity[0]
        first = measured(runner, tmp_path / "costs", ["a"])
        monkeypatch.setattr(cost_curve, "measure", lambda runner: CURVE)
        monkeypatch.setattr(cost_curve, "_step_seconds", lambda runner, n: first.cost(n))
        assert measured(runner, tmp_path / "costs", ["a"]) == first
        assert measured(runner, tmp_path / "costs", ["b"]) == CURVE
        (tmp_path / "file").write_text("")
        assert measured(runner, tmp_path / "file", ["a"]) == CURVE  # nowhere to keep it
        assert len(list((tmp_path / "costs").iterdir())) == 2
        runner.close()


def test_a_curve_of_a_busy_machine_is_measured_again(
    tiny: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = CostCurve((1, 2, 4), (0.010, 0.011, 0.012))
    noisy = CostCurve((1, 2, 4, 8), (0.010, 0.010, 0.030, 0.031))
    with Model.load(tiny("llama", "F32"), n_threads=1) as model:
        runner = Runner(model, n_ctx_tokens=64, max_batch_tokens=64)
        monkeypatch.setattr(cost_curve, "measure", lambda runner: noisy)
        assert measured(runner, tmp_path, []) == noisy
        monkeypatch.setattr(cost_curve, "measure", lambda runner: quiet)
        monkeypatch.setattr(cost_curve, "_step_seconds", lambda runner, n: 0.8 * noisy.cost(n))
        assert measured(runner, tmp_path, []) == noisy
        monkeypatch.setattr(cost_curve, "_step_seconds", lambda runner, n: 0.010 + 0.0001 * n)
        best = CostCurve((1, 2, 4, 8), (0.010, 0.010, 0.012, 0.031))
        assert measured(runner, tmp_path, []) == best
        monkeypatch.setattr(cost_curve, "_step_seconds", lambda runner, n: best.cost(n))
        assert measured(runner, tmp_path, []) == best
        runner.close()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"sizes": [1, 2], "seconds": [1]}', '{"sizes": [], "seconds": []}',
     '{"sizes": [2], "seconds": [1]}', '{"sizes": [1, 2], "seconds": [2, 1]}',
     '{"sizes": [1, 1], "seconds": [1, 1]}', '{"sizes": [1], "seconds": [NaN]}',
     '{"sizes": [1], "seconds": [0]}', '{"sizes": 3, "seconds": 4}'],
)  # fmt: skip
def test_a_file_that_is_no_good(text: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    assert kept(tmp_path / "f") is None
