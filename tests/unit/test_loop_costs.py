"""What the engine's loop costs beside the native steps, as counts: calls of Python, and memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from localllm.engine.blocks import BlockTable
from localllm.engine.cost_curve import CostCurve
from localllm.engine.job import Job
from localllm.engine.loop import Loop
from localllm.engine.open import OpenOptions, open_parts
from localllm.engine.request import Event, Finished, Piece, Request
from localllm.engine.service import NativeService
from localllm.params import GenerateParams

Tiny = Callable[[str, str], Path]
#: A run of decode steps is one step long, and prompts are cheap.
COSTS = CostCurve((1, 64), (0.001, 0.002))
N_STREAMS, N_TOKENS = 4, 40
#: Of a step of them: 455 when this was written; it had been 653.
MOST_CALLS = 540
PARAMS = GenerateParams(temperature=0, max_tokens=N_TOKENS, ignore_eos=True)
PROMPT = tuple(range(10, 50))


class _Ended:
    """The end of a request."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def emit(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._event.set()

    def wait(self) -> None:
        assert self._event.wait(60)


class _Answers(_Ended):
    """The tokens of a request's n answers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.tokens: list[list[int]] = [[] for _ in range(n)]

    def emit(self, event: Event) -> None:
        if isinstance(event, Piece):
            self.tokens[event.index] += event.chunk.token_ids
        super().emit(event)


@pytest.fixture
def parts(tiny: Tiny) -> Any:
    options = OpenOptions(engine="native", n_ctx=256, n_threads=1)
    return open_parts(tiny("llama", "F32"), options, n_sequences=N_STREAMS)


def test_calls_of_a_step_that_only_decodes(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve of costs is not asked, as nobody waits."""
    monkeypatch.setattr("localllm.engine.loop.run_steps", lambda step_s: 1)
    counted: list[int] = []
    step, asked = Loop.step, []

    def counting(loop: Loop, *, alone: bool) -> None:
        n = [0]

        def on_event(frame: FrameType, event: str, arg: object) -> None:
            n[0] += event in ("call", "c_call")

        computed = loop.counts.computed_tokens
        sys.setprofile(on_event)
        try:
            step(loop, alone=alone)
        finally:
            sys.setprofile(None)
        if loop.counts.computed_tokens == computed + N_STREAMS:
            counted.append(n[0])

    monkeypatch.setattr(Loop, "step", counting)
    short_budget = CostCurve.short_budget

    def asking(costs: CostCurve, n_decoding: int, most: int) -> int:
        asked.append(n_decoding)
        return short_budget(costs, n_decoding, most)

    monkeypatch.setattr(CostCurve, "short_budget", asking)
    service = NativeService(parts, "tiny", "counts", costs=COSTS)
    ended = [_Ended() for _ in range(N_STREAMS)]
    try:
        for each in ended:
            service.submit(Request(PROMPT, PARAMS), each.emit)
        for each in ended:
            each.wait()
    finally:
        service.close()
    assert len(counted) > N_TOKENS // 2
    assert sorted(counted)[len(counted) // 2] < MOST_CALLS
    assert len(asked) < N_TOKENS // 2


def test_a_request_that_waits_takes_no_more_memory_for_more_answers(parts: Any) -> None:
    service = NativeService(parts, "tiny", "memory", costs=COSTS)
    try:
        table = lambda: BlockTable(service._runner.blocks, service._windows)  # noqa: E731
        request = Request(PROMPT, PARAMS, n=64)
        job = Job(request, lambda event: None, 0, service.info.tokenizer, 256, table)
        assert len(job.choices) == 1 and job.n_open == 64
        assert job.choices[0].tokens is request.prompt
        assert job.add_choice().tokens is request.prompt
        ended = _Ended()
        ticket: Any = service.submit(replace(request, n=6), ended.emit)
        ended.wait()
        made = [choice.tokens for choice in ticket.job.choices]
        assert [len(tokens) for tokens in made] == [len(PROMPT) + N_TOKENS] * 6
    finally:
        service.close()


@pytest.mark.parametrize("beside", [True, False])
def test_many_answers_are_made_over_several_steps_beside_others(
    beside: bool, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is what it is alone, whenever it was made."""
    monkeypatch.setattr("localllm.engine.loop.FORK_TOKENS", 1)
    service = NativeService(parts, "tiny", "forks", costs=COSTS)
    loop = service._loop
    made: list[int] = []  # answers that were made before a step
    fork_all = loop._fork

    def counting() -> int:
        made.append(fork_all())
        return made[-1]

    monkeypatch.setattr(loop, "_fork", counting)
    many, began, asked = _Answers(6), threading.Event(), threading.Event()

    def held_up(event: Event) -> None:
        began.set()
        assert asked.wait(60)

    try:
        if beside:
            long = replace(PARAMS, max_tokens=200)
            ticket = service.submit(Request(PROMPT[:9], long), held_up)
            assert began.wait(60)
        request = Request(PROMPT, replace(PARAMS, temperature=1.0, seed=5), n=6)
        service.submit(request, many.emit)
        asked.set()
        many.wait()
        if beside:
            ticket.cancel()
        assert [n for n in made if n] == ([1] * 5 if beside else [5])
        for i, tokens in enumerate(many.tokens):
            one = _Answers(1)
            params = replace(request.params, seed=5 + i)
            service.submit(replace(request, params=params, n=1, salt=b"%d" % i), one.emit)
            one.wait()
            assert one.tokens == [tokens] and len(tokens) == N_TOKENS
        assert service.state().blocks_used == 0
    finally:
        service.close()
