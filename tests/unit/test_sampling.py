"""The noise and the plain pick against a second implementation of their definition."""

from __future__ import annotations

import numpy as np
import pytest
from reference.sampling import WORD, noise_row

from localllm.engine.sampling import Sampler
from localllm.params import GenerateParams


def sample(logits: np.ndarray, temperature: float, seed: int, position: int) -> int:
    """With temperature as the only sampler."""
    params = GenerateParams(temperature=temperature, seed=seed, samplers=("temperature",))
    return Sampler(params, logits.size).pick(logits, position)


@pytest.mark.parametrize("seed", [0, 42, WORD])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 2.0])
def test_picks_what_the_definition_says(seed: int, temperature: float) -> None:
    rng = np.random.default_rng(seed % 1000)
    for position in (0, 1, 31, 4095, 2**31 - 1):
        logits = (3 * rng.standard_normal(777)).astype(np.float32)
        values = logits.astype(np.float64) / temperature + noise_row(seed, position, 777)
        assert sample(logits, temperature, seed, position) == int(np.argmax(values))


def test_greedy_and_nothing_to_pick() -> None:
    logits = np.array([np.nan, 2.0, 5.0, 5.0, -np.inf], np.float32)
    assert sample(logits, 0.0, 1, 1) == 2
    assert sample(np.full(9, np.nan, np.float32), 0.0, 1, 1) == -1
    assert sample(np.full(9, -np.inf, np.float32), 1.0, 1, 1) == -1
