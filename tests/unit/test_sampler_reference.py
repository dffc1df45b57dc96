"""Every sampler, and chains of them, against the NumPy reference: the same candidates left, the
same token picked, on random distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from reference import sampling as reference

from localllm.engine.sampling import Sampler
from localllm.params import DEFAULT_ORDER, GenerateParams

N_DISTRIBUTIONS = 200
N_SMALL = 24  # tokens; few enough for all candidates to be picked at some position
POSITIONS = range(400)
SEED = 77
NOISE = np.array([reference.noise_row(SEED, p, N_SMALL) for p in POSITIONS])

COINS = np.array([reference.coin(SEED, p) < 0.5 for p in POSITIONS])
LARGE = (129, 1000, 5000, 20000)

OFF = GenerateParams(
    temperature=1, seed=SEED, top_k=0, top_p=1, min_p=0, repeat_last_n=-1, samplers=("temperature",)
)

Rng = np.random.Generator
Logits = npt.NDArray[np.float32]


def uniform(rng: Rng, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


#: For each sampler, random parameters of it.
RANDOM_PARAMS: dict[str, Callable[[Rng], dict[str, Any]]] = {
    "penalties": lambda rng: {
        "repeat_penalty": uniform(rng, 0.5, 2),
        "presence_penalty": uniform(rng, -2, 2),
        "frequency_penalty": uniform(rng, -2, 2),
        "repeat_last_n": int(rng.choice([-1, 0, 1, 5, 30])),
    },
    "dry": lambda rng: {
        "dry_multiplier": uniform(rng, 0, 3),
        "dry_base": uniform(rng, 1, 2),
        "dry_allowed_length": int(rng.integers(1, 4)),
        "dry_penalty_last_n": int(rng.choice([-1, 0, 1, 7, 40])),
    },
    "top_n_sigma": lambda rng: {"top_n_sigma": uniform(rng, 0, 3)},
    "top_k": lambda rng: {"top_k": int(rng.integers(0, 30))},
    "typical_p": lambda rng: {"typical_p": uniform(rng, 0, 1)},
    "top_p": lambda rng: {"top_p": uniform(rng, 0, 1)},
    "min_p": lambda rng: {"min_p": uniform(rng, 0, 1) ** 3},
    "xtc": lambda rng: {
        "xtc_probability": 0.5,
        "xtc_threshold": uniform(rng, 0, 0.6),
    },
    "temperature": lambda rng: {
        "temperature": uniform(rng, 0.1, 2),
        "dynatemp_range": float(rng.choice([0, 0.3, 2])),
        "dynatemp_exponent": uniform(rng, 0.1, 3),
    },
}
assert set(RANDOM_PARAMS) == set(DEFAULT_ORDER)


def random_logits(rng: Rng, n: int) -> Logits:
    """Flat to sharp, some with ties, with tokens that can never come."""
    logits = rng.standard_normal(n) * rng.choice([0.1, 1, 4])
    if rng.random() < 0.3:
        logits = np.round(logits)
    if n > 4 and rng.random() < 0.3:
        logits[rng.integers(0, n, 3)] = [np.nan, -np.inf, -np.inf]
    return logits.astype(np.float32)


def random_history(rng: Rng, n_vocab: int) -> list[int]:
    """Tokens with repeats of several lengths."""
    few = rng.integers(0, n_vocab, int(rng.integers(1, 5)))
    history = [int(t) for t in rng.choice(few, int(rng.integers(0, 60)))]
    return history + history[: int(rng.integers(0, 20))]


def warm(params: GenerateParams) -> GenerateParams:
    """With a last temperature of 100, at which all candidates that are left come about as often.
    The engine takes it, only people may not ask for it."""
    params = replace(params, samplers=(*params.samplers, "temperature"))
    object.__setattr__(params, "temperature", 100.0)
    return params


@pytest.mark.parametrize("name", sorted({*DEFAULT_ORDER} - {"penalties", "dry", "temperature"}))
def test_truncation_leaves_and_picks_the_same(name: str) -> None:
    """Nearly uniform over at most 24 candidates, 400 positions pick every one that is left."""
    rng = np.random.default_rng(len(name))
    n_left = []
    for _ in range(N_DISTRIBUTIONS):
        n = int(rng.integers(2, N_SMALL + 1))
        logits = random_logits(rng, n)
        params = warm(replace(OFF, samplers=(name,), **RANDOM_PARAMS[name](rng)))
        sampler = Sampler(params, n)
        picks = np.array([sampler.pick(logits, position) for position in POSITIONS])
        for tossed in {*COINS} if name == "xtc" else (True,):  # what a position changes
            positions = np.flatnonzero(tossed == COINS) if name == "xtc" else np.array(POSITIONS)
            left = reference.candidates(params, logits, int(positions[0]))
            want = left.ids[np.argmax(left.x + NOISE[positions][:, left.ids], axis=1)]
            assert picks[positions].tolist() == want.tolist(), params.changed()
            assert {*want.tolist()} == {*left.ids.tolist()}, "400 positions do not show the set"
            n_left.append(len(left.ids))
    assert len(set(n_left)) > 10  # the parameters did remove few and many


@pytest.mark.parametrize("name", ["penalties", "dry", "temperature"])
def test_logits_become_and_pick_the_same(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for _ in range(N_DISTRIBUTIONS):
        n = int(rng.integers(2, N_SMALL + 1))
        logits, history = random_logits(rng, n), random_history(rng, n)
        breakers = [int(t) for t in rng.integers(0, n, int(rng.integers(0, 2)))]
        params = replace(OFF, samplers=(name,), **RANDOM_PARAMS[name](rng))
        sampler = Sampler(params, n, breaker_ids=breakers)
        sampler.accept(history)
        left = reference.candidates(params, logits, history=history, breakers=breakers)
        want = left.ids[np.argmax(left.x + NOISE[:, left.ids], axis=1)]
        got = [sampler.pick(logits, position) for position in POSITIONS]
        assert got == want.tolist(), (params.changed(), history)


@pytest.fixture(scope="module")
def large_noise() -> list[reference.F64]:
    return [reference.noise_row(SEED, position, max(LARGE)) for position in range(3)]


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc"])
def test_large_vocabularies(name: str, large_noise: list[reference.F64]) -> None:
    """Sizes that take the partial selections: many chunks, large lists, ties at the border."""
    rng = np.random.default_rng(len(name))
    for n in LARGE:
        for k in (1, 7, 40, n // 2, n - 1):
            logits = random_logits(rng, n)
            params = replace(OFF, samplers=(name,), **RANDOM_PARAMS[name](rng))
            params = warm(replace(params, top_k=k) if name == "top_k" else params)
            sampler = Sampler(params, n)
            for position, row in enumerate(large_noise):
                left = reference.candidates(params, logits, position)
                token = sampler.pick(logits, position)
                assert token == reference.pick(left, row[:n]), (n, params.changed(), position)


@pytest.mark.parametrize("seed", range(4))
def test_chains_in_any_order(seed: int) -> None:
    """Random subsets of all samplers in random orders, with bias and bans."""
    rng = np.random.default_rng(seed)
    for _ in range(N_DISTRIBUTIONS):
        n = int(rng.integers(2, N_SMALL + 1))
        logits, history = random_logits(rng, n), random_history(rng, n)
        names = rng.permutation(DEFAULT_ORDER)[: int(rng.integers(0, len(DEFAULT_ORDER) + 1))]
        fields = {k: v for name in names for k, v in RANDOM_PARAMS[name](rng).items()}
        bias = tuple((int(t), uniform(rng, -3, 3)) for t in {*rng.integers(0, n, 3).tolist()})
        params = replace(OFF, samplers=tuple(names), logit_bias=bias, ignore_eos=True, **fields)
        banned = [int(t) for t in rng.integers(0, n, int(rng.integers(0, 2)))]
        breakers = [int(t) for t in rng.integers(0, n, 1)]
        sampler = Sampler(params, n, stop_ids=banned, breaker_ids=breakers)
        sampler.accept(history)
        for position in range(8):
            left = reference.candidates(
                params, logits, position, history=history, breakers=breakers, banned=banned
            )
            token = sampler.pick(logits, position)
            assert token == reference.pick(left, NOISE[position][:n]), (params.changed(), position)


def test_mirostat() -> None:
    """The same tokens and the same mu over runs of 20 tokens."""
    rng = np.random.default_rng(5)
    for _ in range(N_DISTRIBUTIONS):
        n = int(rng.integers(2, N_SMALL + 1))
        tau, eta = uniform(rng, 0, 4), uniform(rng, 0, 1)
        params = replace(
            OFF,
            temperature=uniform(rng, 0.3, 2),
            mirostat=2,
            mirostat_tau=tau,
            mirostat_eta=eta,
            top_k=1,  # of no effect
            samplers=DEFAULT_ORDER,
        )
        sampler, mu = Sampler(params, n), 2 * float(np.float32(tau))
        for position in range(20):
            logits = random_logits(rng, n)
            left = reference.candidates(params, logits, mu=mu)
            token = sampler.pick(logits, position)
            assert token == reference.pick(left, NOISE[position][:n])
            sampler.accept([token])
            every = reference.candidates(params, logits, mu=math.inf)
            surprise = -np.log2(every.p[every.ids.tolist().index(token)])
            mu -= float(np.float32(eta)) * (surprise - float(np.float32(tau)))
