"""Log probabilities of prompts against llama.cpp's forward pass with the logits of all tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reference.engine import random_tokens, runner_of
from reference.llama_oracle import LlamaOracle
from reference.tolerances import ONE_LOGIT

from localllm.engine.runner import Feed, Model

N_TOKENS = 150
TOP = 5


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_scores_are_llama_cpps(tiny: Callable[[str, str], Path], arch: str) -> None:
    path = tiny(arch, "F32")
    with LlamaOracle(path, n_ctx=N_TOKENS, kv="f32") as oracle:
        tokens = random_tokens(N_TOKENS, oracle.n_vocab)
        logits = oracle.forward(tokens).astype(np.float64)[:-1]
    top = logits.max(axis=1, keepdims=True)
    theirs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    limits = ONE_LOGIT.value * logits.std(axis=1)
    with Model.load(path) as model, runner_of(model, max_sequences=3) as runner:
        feed = Feed(runner.new_sequence(), tokens, next_tokens=[*tokens[1:], -1])
        rows = runner.step([feed], n_next_logprobs=TOP).next_logprobs[0]
    assert len(rows) == N_TOKENS - 1
    for row, their, limit in zip(rows, theirs, limits, strict=True):
        assert row.logprob == pytest.approx(their[row.token], abs=limit)
        best = np.sort(their)[::-1][:TOP]
        assert [value for _, value in row.top] == pytest.approx(best, abs=limit)
        assert all(value == pytest.approx(their[i], abs=limit) for i, value in row.top)
        least, most = ((their > their[row.token] + x).sum() for x in (2 * limit, -2 * limit))
        assert row.rank is not None and least < row.rank <= most
