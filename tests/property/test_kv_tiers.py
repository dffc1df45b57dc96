"""Who gives blocks up and gets them back has the same tokens as alone, whatever the pool, the
memory and the disk are."""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine.cost_curve import CostCurve
from localllm.engine.kv_tier import TierOptions
from localllm.engine.open import OpenOptions, open_parts
from localllm.engine.paged import PagedEngine
from localllm.engine.request import Event, Failed, Finished, Piece, Request
from localllm.engine.runner import Runner
from localllm.engine.service import NativeService
from localllm.params import GenerateParams

FULL = os.environ.get("FULL") == "1"
SLOW = CostCurve((1, 64), (1.0, 64.0))  # nothing is quicker than to read
N_CTX = 256
Tokens = list[list[int]]


def answers(path: Path, tiers: TierOptions | None, n_blocks: int, requests: list[Request],
            n_at_once: int) -> Tokens:  # fmt: skip
    options = OpenOptions("native", n_ctx=N_CTX, n_threads=1, tiers=tiers)
    parts = open_parts(path, options)
    engine = parts.engine
    assert isinstance(engine, PagedEngine)
    engine.runner.close()
    runner = Runner(
        engine.model, n_ctx_tokens=32 * n_blocks, max_batch_tokens=48, max_sequences=n_at_once,
        n_sampled=parts.text.tokenizer.n_vocab,
    )  # fmt: skip
    parts.engine = PagedEngine(engine.model, runner, N_CTX)
    service = NativeService(parts, "tiny", "sha256:tiny", costs=SLOW)
    tokens: Tokens = [[] for _ in requests]
    ends: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def emit_to(i: int) -> Callable[[Event], None]:
        def emit(event: Event) -> None:
            if isinstance(event, Piece):
                tokens[i] += event.chunk.token_ids
            else:
                ends.put(event)

        return emit

    try:
        for i, request in enumerate(requests):
            service.submit(request, emit_to(i))
        for _ in requests:
            last = ends.get(timeout=60)
            assert isinstance(last, Finished), last.error if isinstance(last, Failed) else last
        assert service.state().blocks_used == 0
    finally:
        service.close()
    return tokens


asked = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 100), st.integers(0, 2), st.booleans()),
    min_size=2,
    max_size=6,
)


@settings(max_examples=300 if FULL else 12, deadline=None)
@given(
    asked=asked,
    n_blocks=st.integers(8, 12),
    n_at_once=st.integers(2, 4),
    ram_bytes=st.sampled_from([0, 40_000, 1 << 24]),
    disk_bytes=st.sampled_from([None, 60_000, 1 << 24]),
    arch=st.sampled_from(["llama", "gemma3"]),
)
def test_who_gives_blocks_up_loses_nothing(
    tiny: Callable[[str, str], Path],
    asked: list[tuple[int, int, int, bool]],
    n_blocks: int,
    n_at_once: int,
    ram_bytes: int,
    disk_bytes: int | None,
    arch: str,
) -> None:
    path = tiny(arch, "Q4_0")
    params = GenerateParams(temperature=0.8, ignore_eos=True)
    requests = [
        Request(
            tuple(np.random.default_rng(family).integers(5, 200, n_prompt).tolist()),
            replace(params, seed=i, max_tokens=n_answer),
            may_store=may_store,
        )
        for i, (n_prompt, n_answer, family, may_store) in enumerate(asked)
    ]
    tiers = TierOptions(ram_bytes, disk_bytes is not None, disk_bytes)
    alone = answers(path, None, 40, [replace(r, salt=b"%d" % i) for i, r in enumerate(requests)], 1)
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, LOCALLLM_HOME=home),
    ):
        for _ in range(2):  # again after a restart
            assert answers(path, tiers, n_blocks, requests, n_at_once) == alone
