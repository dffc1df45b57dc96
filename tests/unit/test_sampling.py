"""The sampler against a second implementation of its definition, written from the description."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localllm import native
from localllm.native import lib

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def noise(seed: int, position: int, token: int) -> float:
    """Gumbel noise: eight bits from a hash of eight tokens, 44 from the token's own."""
    shared = mix((mix((seed + GOLDEN) & WORD) + position * GOLDEN) & WORD)
    own = mix(shared ^ 0xD1B54A32D192ED03)
    byte = mix((shared + (token // 8 + 1) * GOLDEN) & WORD) >> 8 * (token % 8) & 0xFF
    bits = byte << 44 | mix((own + (token + 1) * GOLDEN) & WORD) >> 20
    return -math.log(-math.log((bits + 0.5) * 2.0**-52))


def sample(logits: np.ndarray, temperature: float, seed: int, position: int) -> int:
    pointer = native.array_in(logits, np.float32, name="logits")
    return int(lib.llm_sample(pointer, logits.size, temperature, seed, position))


@pytest.mark.parametrize("seed", [0, 42, WORD])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_picks_what_the_definition_says(seed: int, temperature: float) -> None:
    rng = np.random.default_rng(seed % 1000)
    for position in (0, 1, 31, 4095, 2**31 - 1):
        logits = (3 * rng.standard_normal(777)).astype(np.float32)
        values = [float(x) / temperature + noise(seed, position, i) for i, x in enumerate(logits)]
        assert sample(logits, temperature, seed, position) == int(np.argmax(values))


def test_greedy_and_nothing_to_pick() -> None:
    logits = np.array([np.nan, 2.0, 5.0, 5.0, -np.inf], np.float32)
    assert sample(logits, 0.0, 1, 1) == 2
    assert sample(np.full(9, np.nan, np.float32), 0.0, 1, 1) == -1
    assert sample(np.full(9, -np.inf, np.float32), 1.0, 1, 1) == -1
