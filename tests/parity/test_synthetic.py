"""The benchmarks' random files in llama.cpp: it loads them and computes what we compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference.engine import load_logits
from reference.llama_oracle import LlamaOracle
from reference.tolerances import SYNTHETIC_CORRELATION

from benchmarks import synthetic

SHAPE = synthetic.Shape(6, 256, 512, 4, 2, 64, 512, True)
TOKENS = [1, 500, 17, 3, 3, 250, 99]


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q5_K_M", "Q4_0+Q8_0"])
def test_llama_cpp_loads_it_and_agrees(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "a.gguf"
    synthetic.write(path, SHAPE, mix, n_identity=2)
    ours = load_logits(path, TOKENS)
    with LlamaOracle(path, n_ctx=64) as llama:
        theirs = llama.forward(TOKENS)
    assert ours.shape == theirs.shape == (len(TOKENS), 512)
    for row, other in zip(ours, theirs, strict=True):
        assert np.corrcoef(row, other)[0, 1] > SYNTHETIC_CORRELATION.value
