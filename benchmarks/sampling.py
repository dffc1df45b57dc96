"""What a token's sampling costs, beside a greedy pick: the least that any sampler does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.report import Key, Row
from localllm.engine.sampling import Sampler
from localllm.native import ffi, lib
from localllm.params import GenerateParams

CHAINS = {
    "default chain": GenerateParams(seed=1),
    "temperature alone": GenerateParams(seed=1, samplers=("temperature",)),
    "top-p alone": GenerateParams(seed=1, top_k=0, min_p=0),
    "typical": GenerateParams(seed=1, top_k=0, typical_p=0.9),
    "dynamic temperature": GenerateParams(seed=1, top_k=0, dynatemp_range=0.5),
    "mirostat 2": GenerateParams(seed=1, mirostat=2),
}
GREEDY = GenerateParams(temperature=0)
VOCABULARIES = (49152, 262144)


def keys() -> list[Key]:
    return [(f"sampling, {name}", f"{n} tokens") for n in VOCABULARIES for name in CHAINS]


def measure(n_rounds: int = 200) -> Iterator[Row]:
    """A row for each chain and size, on one thread; chains and the greedy pick take turns."""
    for n_vocab in VOCABULARIES:
        logits = (3 * np.random.default_rng(0).standard_normal(n_vocab)).astype(np.float32)
        samplers = {name: Sampler(p, n_vocab) for name, p in {"": GREEDY, **CHAINS}.items()}
        seconds: dict[str, list[float]] = {name: [] for name in samplers}
        pointer, token = ffi.from_buffer("float[]", logits), ffi.new("int32_t *")
        for position in range(n_rounds):
            for name, sampler in samplers.items():
                started = time.perf_counter()
                lib.llm_sampler_pick(sampler.handle, pointer, position, token, ffi.NULL)
                seconds[name].append(time.perf_counter() - started)
        us = {name: 1e6 * statistics.median(each) for name, each in seconds.items()}
        for name in CHAINS:
            yield Row(
                f"sampling, {name}",
                f"{n_vocab} tokens",
                "us",
                us[name],
                roof="us greedy",
                roof_value=us[""],
                share=us[""] / us[name],
            )
