"""What one task of the chat shows while another one changes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tui.driving import Driven, drive
from tui.fakes import FakeSession

from localllm.tui.turns import Turns, in_turn
from localllm.tui.widgets.message import Notice

_STEPS = 50  # of the event loop: more than a drawing takes


def _shown(d: Driven) -> list[str]:
    """What stands on the screen, of each message."""
    views = d.chat.transcript.views
    return [view.answer.source if view.answer else view.message.content for view in views]


def _held_up(d: Driven, what: Callable[[], Awaitable[Any]]) -> None:
    """The next conversation is shown late: `what` comes after it was read."""
    transcript = d.chat.transcript
    real = transcript.open

    async def late(*args: Any, **kwargs: Any) -> None:
        transcript.open = real  # type: ignore[method-assign]
        await what()
        await real(*args, **kwargs)

    transcript.open = late  # type: ignore[method-assign]


async def _drawn_meanwhile(d: Driven) -> None:
    """Another task draws, as far as it comes."""
    d.drawing = asyncio.create_task(d.chat.draw())  # type: ignore[attr-defined]
    for _ in range(_STEPS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ends", [False, True], ids=["grows", "ends"])
def test_what_comes_while_a_conversation_is_opened_is_shown(tmp_path: Path, ends: bool) -> None:
    first, second, last = threading.Event(), threading.Event(), threading.Event()
    steps = ["one", first, " two", second] if ends else ["one", first, " two", second, last]

    async def body(d: Driven) -> None:
        try:
            await scene(d)
        finally:  # its thread would hold up the end
            for gate in (first, second, last):
                gate.set()

    async def scene(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: _shown(d) == ["x", "one"])
        answering = d.chat.answering
        assert answering is not None

        async def come() -> None:
            first.set()
            second.set()
            while not answering._texts or (ends and answering._finish is None):
                await asyncio.sleep(0.001)
            await _drawn_meanwhile(d)

        _held_up(d, come)
        await d.chat.reopen()
        await d.until(lambda: d.contents == ["x", "one two"] and (d.idle or not ends))
        assert _shown(d) == d.contents
        last.set()
        await d.until(lambda: d.idle)
        assert [view.message.content for view in d.chat.transcript.views] == d.contents
        assert not any(view.growing for view in d.chat.transcript.views)

    drive(body, tmp_path, session=FakeSession([steps]))


@pytest.mark.parametrize("lasts", [False, True])
def test_what_is_said_of_a_conversation_waits_there(tmp_path: Path, lasts: bool) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        first = d.path[0].conversation
        d.chat._tell(Notice("of the first one", lasts=lasts))
        d.chat.conversation = d.store.create(model="fake:135m")  # shown before it was drawn
        await d.until(lambda: d.chat._untold)
        assert "of the first one" not in d.notices
        await d.chat.show_conversation(first)
        await d.until(lambda: "of the first one" in d.notices)
        await d.chat.show_conversation(None)
        assert not d.notices

    drive(body, tmp_path)


class _Two:
    def __init__(self) -> None:
        self.turns, self.done = Turns(), list[str]()

    @in_turn
    async def outer(self, name: str) -> None:
        self.done.append(name)
        await asyncio.sleep(0)
        await self.inner(name)

    @in_turn
    async def inner(self, name: str) -> None:
        await asyncio.sleep(0)
        self.done.append(name)
        if name == "b":
            raise ValueError(name)


def test_one_task_at_a_time_also_after_an_error_or_an_end() -> None:
    async def run() -> list[str]:
        two = _Two()
        tasks = [asyncio.create_task(two.outer(name)) for name in "abcd"]
        await asyncio.sleep(0)
        tasks[2].cancel()  # it waits
        await asyncio.wait(tasks)
        return two.done

    assert asyncio.run(run()) == ["a", "a", "b", "b", "d", "d"]


def test_a_remark_while_a_conversation_is_opened_stands_below_it(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        transcript = d.chat.transcript
        opened = asyncio.create_task(transcript.open(d.path, 0))
        await asyncio.sleep(0)
        await transcript.add(Notice("a remark"))
        await opened
        assert isinstance(transcript.children[-1], Notice)
        assert _shown(d) == d.contents

    drive(body, tmp_path)
