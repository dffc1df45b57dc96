"""Short ways to get logits out of the engine, for the tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localllm.engine.runner import Feed, Model, Runner

F32 = NDArray[np.float32]


@contextmanager
def runner_of(model: Model, kv: str = "f16", **sizes: int) -> Iterator[Runner]:
    runner = Runner(model, kv_type=kv, **sizes)
    try:
        yield runner
    finally:
        runner.close()


def feed_chunks(runner: Runner, sequence: Any, tokens: Sequence[int], chunk: int) -> F32:
    """Logits [n_tokens, n_vocab] of tokens appended to a sequence, chunk after chunk."""
    parts = []
    for at in range(0, len(tokens), chunk):
        feed = Feed(sequence, list(tokens[at : at + chunk]))
        logits = runner.step([feed], all_logits=True).logits
        assert logits is not None
        parts.append(logits)
    return np.concatenate(parts)


def logits_of(model: Model, tokens: Sequence[int], chunk: int = 512, kv: str = "f16") -> F32:
    """Logits [n_tokens, n_vocab] of one sequence alone, on a fresh pool."""
    sizes = {"n_ctx_tokens": len(tokens), "max_batch_tokens": chunk, "max_sequences": 1}
    with runner_of(model, kv, **sizes) as runner:
        return feed_chunks(runner, runner.new_sequence(), tokens, chunk)


def decode_ids(
    runner: Runner, feeds: list[Feed], k: int, stop_tokens: Sequence[int] = ()
) -> list[list[int]]:
    """The token ids of `Runner.decode`."""
    return [[s.token for s in row] for row in runner.decode(feeds, k, stop_tokens)]


def load_logits(path: Path, tokens: Sequence[int], kv: str = "f16", **load: Any) -> F32:
    """The same from a file, loaded with these options."""
    with Model.load(path, **load) as model:
        return logits_of(model, tokens, kv=kv)


def random_tokens(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]
