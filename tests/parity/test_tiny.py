"""The engine against a NumPy forward pass, every architecture and weight type; and that forward
pass against llama.cpp, so that the two oracles vouch for each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from reference.engine import load_logits, random_tokens, runner_of
from reference.forward import Reference
from reference.llama_oracle import LlamaOracle
from reference.tolerances import (
    BY_TYPE,
    ENGINE_AND_LLAMA,
    LLAMA_BY_FAMILY,
    LLAMA_QUANTIZED,
    Q8_KV,
    SHORT_DECILE,
    Tolerance,
)

from localllm.engine.runner import Feed, Model
from models.tiny.make import ARCHITECTURES, TYPES, pairs

Tiny = Callable[[str, str], Path]

# More than the windows (40), the original contexts (64) and several KV blocks (32).
N_TOKENS = 150
N_SHORT = 24  # short prompts of 1 to 3 tokens


def errors(got: NDArray[np.floating], want: NDArray[np.floating]) -> NDArray[np.float64]:
    """Relative root mean square error of each position. [n_tokens]"""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    difference = np.sqrt(np.mean((got.astype(np.float64) - want) ** 2, axis=1))
    return difference / np.std(want, axis=1)


def check(got: NDArray[np.floating], want: NDArray[np.floating], limits: Tolerance) -> None:
    e = errors(got, want)
    at = int(e.argmax())
    assert np.median(e) <= limits.median, (
        f"median error {np.median(e):.2e}, worst at {at}: {e[at]:.2e}"
    )
    assert e[at] <= limits.worst, f"error {e[at]:.2e} at position {at}, median {np.median(e):.2e}"


def short_errors(path: Path, reference: Reference, kv: str) -> list[float]:
    """Errors of the last positions of N_SHORT prompts that run in one batch."""
    prompts = [random_tokens(1 + i % 3, reference.n_vocab, seed=i) for i in range(N_SHORT)]
    with Model.load(path) as model, runner_of(model, kv, max_sequences=N_SHORT) as runner:
        feeds = [Feed(runner.new_sequence(), p) for p in prompts]
        logits = runner.step(feeds, want_logits=True).logits
    assert logits is not None
    want = np.stack([reference.forward(p)[-1] for p in prompts])
    return errors(logits, want).tolist()


def check_both(path: Path, kv: str, long_limits: Tolerance) -> None:
    reference = Reference(path, kv=kv)
    short = short_errors(path, reference, kv)
    assert np.quantile(short, 0.1) <= SHORT_DECILE.value, (
        f"errors of short prompts: {np.sort(short)}"
    )
    assert max(short) <= long_limits.worst, f"errors of short prompts: {np.sort(short)}"
    tokens = random_tokens(N_TOKENS, reference.n_vocab)
    check(load_logits(path, tokens, kv=kv), reference.forward(tokens), long_limits)


@pytest.mark.parametrize(("arch", "weight_type"), list(pairs()))
def test_engine_matches_numpy(tiny: Tiny, arch: str, weight_type: str) -> None:
    check_both(tiny(arch, weight_type), "f16", BY_TYPE[weight_type])


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_engine_matches_numpy_with_q8_0_cache(tiny: Tiny, arch: str) -> None:
    check_both(tiny(arch, "F32"), "q8_0", Q8_KV)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_engine_matches_numpy_over_many_blocks(tiny: Tiny, arch: str) -> None:
    """700 tokens: more than one split (512) of the attention."""
    path = tiny(arch, "F16")
    reference = Reference(path, kv="f16")
    tokens = random_tokens(700, reference.n_vocab, seed=1)
    check(load_logits(path, tokens), reference.forward(tokens), BY_TYPE["F16"])


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_numpy_matches_llama_cpp(tiny: Tiny, arch: str) -> None:
    path = tiny(arch, "F32")
    reference = Reference(path, kv="f32")
    tokens = random_tokens(N_TOKENS, reference.n_vocab)
    with LlamaOracle(path, n_ctx=N_TOKENS, kv="f32") as oracle:
        theirs = oracle.forward(tokens)
    check(theirs, reference.forward(tokens), LLAMA_BY_FAMILY[ARCHITECTURES[arch].family])


@pytest.mark.parametrize("weight_type", list(TYPES))
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_llama_cpp_runs_every_file(tiny: Tiny, arch: str, weight_type: str) -> None:
    """Both read the same weights; llama.cpp rounds activations in its own way."""
    path = tiny(arch, weight_type)
    reference = Reference(path, kv="f32", quantize_acts=False)
    tokens = random_tokens(20, reference.n_vocab)
    with LlamaOracle(path, n_ctx=len(tokens), kv="f32") as oracle:
        check(oracle.forward(tokens), reference.forward(tokens), LLAMA_QUANTIZED)


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_engine_matches_llama_cpp(tiny: Tiny, arch: str) -> None:
    """Straight against it: what is left is the engine's f16 cache against its f32 one."""
    path = tiny(arch, "F32")
    with LlamaOracle(path, n_ctx=N_TOKENS, kv="f32") as oracle:
        tokens = random_tokens(N_TOKENS, oracle.n_vocab)
        theirs = oracle.forward(tokens)
    check(load_logits(path, tokens), theirs, ENGINE_AND_LLAMA)
