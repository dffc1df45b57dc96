"""The engine against a NumPy forward pass, every architecture and weight type; and that forward
pass against llama.cpp, so that the two oracles vouch for each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from reference.engine import load_logits, random_tokens
from reference.forward import Reference
from reference.llama_oracle import LlamaOracle

from models.tiny.make import ARCHITECTURES, pairs

Tiny = Callable[[str, str], Path]

# More than the windows (40), the original contexts (64) and several KV blocks (32).
N_TOKENS = 150

# Root mean square error of a position's logits, relative to their spread: (median, worst).
# Only rounding differs from the reference; a value that falls next to a rounding border (of f16 K
# and V, or of an int8 activation) can fall on the other side, which shows in single positions.
FLOAT_TOLERANCE = (2e-5, 2e-3)
INT8_TOLERANCE = (2e-4, 1e-2)
Q8_KV_TOLERANCE = (2e-3, 2e-2)

# llama.cpp rounds the input of GELU to f16 (a table look-up).
LLAMA_TOLERANCE = {"gemma3": 5e-3}
LLAMA_TOLERANCE_ELSE = 1e-4

FLOAT_TYPES = ("F32", "F16", "BF16")


def errors(got: NDArray[np.floating], want: NDArray[np.floating]) -> NDArray[np.float64]:
    """Relative root mean square error of each position. [n_tokens]"""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    difference = np.sqrt(np.mean((got.astype(np.float64) - want) ** 2, axis=1))
    return difference / np.std(want, axis=1)


def check(
    got: NDArray[np.floating], want: NDArray[np.floating], limits: tuple[float, float]
) -> None:
    e = errors(got, want)
    at = int(e.argmax())
    assert np.median(e) <= limits[0], f"median error {np.median(e):.2e}, worst at {at}: {e[at]:.2e}"
    assert e[at] <= limits[1], f"error {e[at]:.2e} at position {at}, median {np.median(e):.2e}"


@pytest.mark.parametrize(("arch", "weight_type"), list(pairs()))
def test_engine_matches_numpy(tiny: Tiny, arch: str, weight_type: str) -> None:
    path = tiny(arch, weight_type)
    reference = Reference(path, kv="f16")
    tokens = random_tokens(N_TOKENS, reference.n_vocab)
    limits = FLOAT_TOLERANCE if weight_type in FLOAT_TYPES else INT8_TOLERANCE
    check(load_logits(path, tokens), reference.forward(tokens), limits)


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_engine_matches_numpy_with_q8_0_cache(tiny: Tiny, arch: str) -> None:
    path = tiny(arch, "F32")
    reference = Reference(path, kv="q8_0")
    tokens = random_tokens(N_TOKENS, reference.n_vocab)
    check(load_logits(path, tokens, kv="q8_0"), reference.forward(tokens), Q8_KV_TOLERANCE)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_engine_matches_numpy_over_many_blocks(tiny: Tiny, arch: str) -> None:
    """700 tokens: more than one split (512) of the attention."""
    path = tiny(arch, "Q8_0")
    reference = Reference(path, kv="f16")
    tokens = random_tokens(700, reference.n_vocab, seed=1)
    check(load_logits(path, tokens), reference.forward(tokens), INT8_TOLERANCE)


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_numpy_matches_llama_cpp(tiny: Tiny, arch: str) -> None:
    path = tiny(arch, "F32")
    reference = Reference(path, kv="f32")
    tokens = random_tokens(N_TOKENS, reference.n_vocab)
    with LlamaOracle(path, n_ctx=N_TOKENS, kv="f32") as oracle:
        theirs = oracle.forward(tokens)
    limit = LLAMA_TOLERANCE.get(ARCHITECTURES[arch].family, LLAMA_TOLERANCE_ELSE)
    check(theirs, reference.forward(tokens), (limit, limit))


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_engine_matches_llama_cpp(tiny: Tiny, arch: str) -> None:
    """Straight against it: what is left is the engine's f16 cache against its f32 one."""
    path = tiny(arch, "F32")
    with LlamaOracle(path, n_ctx=N_TOKENS, kv="f32") as oracle:
        tokens = random_tokens(N_TOKENS, oracle.n_vocab)
        theirs = oracle.forward(tokens)
    check(load_logits(path, tokens), theirs, (5e-3, 5e-3))
