"""A model that hangs is seen, and long steps are not taken for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins.conditions import wait
from test_service import PARAMS, Answers, ask, opened, prompt

from localllm.engine import service as service_module
from localllm.engine.request import Request
from localllm.engine.runner import Feed, StepResult
from localllm.engine.service import NativeService
from localllm.server.watchdog import stuck


@pytest.fixture
def service(tiny: Callable[[str, str], Path]) -> Iterator[NativeService]:
    with_four = opened(tiny("llama", "F32"))
    yield with_four
    with_four.close()


def test_a_step_that_hangs_is_seen_and_its_end_too(
    service: NativeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(service)
    monkeypatch.setattr(
        service, "_state", replace(service._state, last_progress_s=time.monotonic() - 60)
    )
    assert service.state().stalled_s(time.monotonic()) == 0  # there was nothing to do
    step, go_on = service._loop.step, threading.Event()

    def hanging(**more: Any) -> None:
        assert go_on.wait(20)
        step(**more)

    monkeypatch.setattr(service._loop, "step", hanging)
    answers = Answers(service, Request(prompt(1), PARAMS))
    assert service.state().stalled_s(time.monotonic()) < 30  # that minute counts for nothing
    wait(lambda: service.state().stalled_s(time.monotonic()) > 0.1)
    go_on.set()
    answers.result()
    wait(lambda: service.state().stalled_s(time.monotonic()) == 0)


def test_a_long_step_is_no_stall_while_it_moves(
    service: NativeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 9 s, which says so; then it hangs, which is seen after the usual second."""
    began, go_on, now = threading.Event(), threading.Event(), [time.monotonic()]
    step = service._runner.step

    def slow(*args: Any, **more: Any) -> StepResult:
        began.set()
        assert go_on.wait(20)
        return step(*args, **more)

    monkeypatch.setattr(service._runner, "step", slow)
    answers = Answers(service, Request(prompt(1), PARAMS))
    assert began.wait(20)
    with monkeypatch.context() as patch:
        patch.setattr(service_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        for _ in range(10):
            now[0] += 0.9
            service._runner._progress[0] += 1
            assert stuck({"m": service.state()}, now[0]) == {}
        now[0] += 0.9
        assert stuck({"m": service.state()}, now[0]) == {}
        now[0] += 0.2
        assert stuck({"m": service.state()}, now[0]) == {"m": pytest.approx(1.1)}
    go_on.set()
    answers.result()


def test_a_native_step_tells_others_that_it_moves(service: NativeService) -> None:
    """From inside one native call, which holds no lock of Python's."""
    runner, number, ends = service._runner, [0], threading.Event()

    def compute() -> None:
        while not ends.is_set():
            number[0] += 1
            sequence = runner.new_sequence()
            runner.step([Feed(sequence, prompt(number[0], 64), sample=False)])
            number[0] += 1
            runner.free(sequence)

    thread = threading.Thread(target=compute)
    thread.start()
    seen: dict[int, set[int]] = {}

    def moved_inside() -> bool:
        for _ in range(1000):
            before, progress = number[0], runner.progress
            if before % 2 and number[0] == before:
                seen.setdefault(before, set()).add(progress)
        return any(len(each) > 2 for each in seen.values())

    try:
        wait(moved_inside)
    finally:
        ends.set()
        thread.join()
