"""Models that are opened one over another: one is open at the end, and no other stays open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession

from localllm.errors import LocalLLMError


async def _load(d: Driven, name: str) -> None:
    await d.type(f"/load {name}")
    await d.press("enter")


def test_two_loads_that_fail_leave_the_model_before(tmp_path: Path) -> None:
    never = threading.Event()
    one, big, bad = FakeSession([["from one"]]), FakeSession(), FakeSession()
    loads: dict[str, Any] = {"big": [0.5, never], "bad": [LocalLLMError("no such file")]}
    opener = FakeOpener({"one": one, "big": big, "bad": bad}, default="one", loads=loads)

    async def body(d: Driven) -> None:
        await _load(d, "big")
        await d.until(lambda: "loading big  50%" in d.text and d.app.session is None)
        await _load(d, "bad")
        await d.until(lambda: "no such file" in d.text and d.app.session is one)
        assert not one.is_closed and not d.app.loading
        await d.ask("x")
        assert d.contents[-1] == "from one"

    drive(body, tmp_path, opener=opener)


class _Stubborn(FakeOpener):
    """Does not listen when a load is cancelled."""

    def open(self, *args: Any, cancelled: Callable[[], bool], **more: Any) -> FakeSession:
        return super().open(*args, cancelled=lambda: False, **more)


def test_a_cancelled_load_that_succeeds_is_closed(tmp_path: Path) -> None:
    gate = threading.Event()
    one, big, two = FakeSession(), FakeSession(), FakeSession()
    opener = _Stubborn(
        {"one": one, "big": big, "two": two}, default="one", loads={"big": [0.5, gate]}
    )

    async def body(d: Driven) -> None:
        await _load(d, "big")
        await d.until(lambda: "loading big  50%" in d.text)
        await _load(d, "two")
        await d.until(lambda: not d.chat.composer.text)
        gate.set()
        await d.until(lambda: d.app.session is two and not d.app.loading and big.is_closed)
        assert d.app.model == "two" and one.is_closed and not two.is_closed

    drive(body, tmp_path, opener=opener)
