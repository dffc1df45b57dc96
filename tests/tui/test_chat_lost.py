"""A model's file is cut short or written over while it is in use: it is opened again when the next
answer is wanted, in whatever way, and nothing of the conversations is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession

from localllm.errors import FileError, LocalLLMError
from localllm.tui.screens.models import ModelsScreen

CUT = FileError("model.gguf: the file was cut short while it was used")


class Mended(FakeOpener):
    """Each load of `one` gives the next of some sessions, or raises it."""

    def __init__(self, *loads: FakeSession | LocalLLMError) -> None:
        super().__init__({"one": FakeSession()}, default="one")
        self._next = iter(loads)

    def open(self, name: str, *args: Any, **more: Any) -> FakeSession:
        found = next(self._next)
        if isinstance(found, LocalLLMError):
            raise found
        self.sessions["one"] = found
        return super().open(name, *args, **more)


def losing() -> FakeSession:
    """Its second answer breaks off, as every one after it would."""

    def lose() -> None:
        session.is_lost = True

    session = FakeSession([["first"], ["half", lose, CUT], [CUT]])
    return session


async def lost(d: Driven) -> None:
    await d.ask("one?")
    await d.ask("two?")
    await d.until(lambda: "F5 opens the file again" in d.text)
    assert d.contents == ["one?", "first", "two?", "half"] and "cut short" in d.text


async def f5(d: Driven) -> list[str]:
    await d.press("f5")
    return ["one?", "first", "two?", "whole"]


async def f6(d: Driven) -> list[str]:
    await d.press("f6")
    return ["one?", "first", "two?", "halfwhole"]


async def enter(d: Driven) -> list[str]:
    await d.type("three?")
    await d.press("enter")
    return ["one?", "first", "two?", "half", "three?", "whole"]


async def from_a_message(d: Driven) -> list[str]:
    await d.press("ctrl+up", "r")
    return ["one?", "first", "two?", "whole"]


async def in_another_conversation(d: Driven) -> list[str]:
    await d.press("ctrl+n")
    await d.type("three?")
    await d.press("enter")
    return ["three?", "whole"]


WAYS = [f5, f6, enter, from_a_message, in_another_conversation]


@pytest.mark.parametrize("way", WAYS)
def test_the_next_answer_opens_it_again(tmp_path: Path, way: Callable[..., Any]) -> None:
    before, after = losing(), FakeSession([["whole"]])
    opener = Mended(before, after)

    async def body(d: Driven) -> None:
        await lost(d)
        expected = await way(d)
        await d.until(lambda: d.contents == expected and d.idle)
        assert d.app.session is after and before.is_closed and not d.app.loading
        assert len(opener.opened) == 2 and after.went_on == [way is f6]
        await d.ask("more?")
        assert d.contents == [*expected, "more?", "whole"]

    drive(body, tmp_path, opener=opener)


@pytest.mark.parametrize("way", [f5, enter])
def test_a_file_that_is_still_broken_is_said_until_it_is_whole(
    tmp_path: Path, way: Callable[..., Any]
) -> None:
    broken = FileError("model.gguf ends too early")
    opener = Mended(losing(), broken, broken, FakeSession([["whole"]]))

    async def body(d: Driven) -> None:
        await lost(d)
        for n in (1, 2):
            await way(d)
            await d.until(lambda n=n: d.text.count("ends too early") == n)  # type: ignore[misc]
            assert d.app.session is None and not d.app.loading
            assert d.contents == ["one?", "first", "two?", "half"]
            if way is enter:
                assert d.chat.composer.text == "three?"  # to be sent again
                d.chat.composer.take()
        expected = await way(d)
        await d.until(lambda: d.contents == expected and d.idle)
        assert not isinstance(d.app.screen, ModelsScreen)

    drive(body, tmp_path, opener=opener, size=(80, 40))


def test_what_waits_elsewhere_opens_it_again(tmp_path: Path) -> None:
    before, after, gate = losing(), FakeSession([["whole"]]), threading.Event()
    opener = Mended(before, after)

    async def body(d: Driven) -> None:
        await d.ask("one?")
        first = d.chat.conversation
        before.script[1].insert(0, gate)
        await d.type("two?")
        await d.press("enter")
        await d.press("ctrl+n")
        await d.type("three?")
        await d.press("enter")
        await d.until(lambda: len(d.chat.queued) == 1)
        gate.set()
        await d.until(lambda: d.contents == ["three?", "whole"] and d.idle)
        assert first is not None
        told = [message.content for message in d.store.path(first.id)]
        assert told == ["one?", "first", "two?", "half"] and len(opener.opened) == 2

    drive(body, tmp_path, opener=opener)


def test_another_conversation_that_is_shown_then_is_left_alone(tmp_path: Path) -> None:
    """F5 was for the one before."""
    gate, after = threading.Event(), FakeSession([["whole"]])
    opener = Mended(losing(), after)

    async def body(d: Driven) -> None:
        await lost(d)
        opener._loads["one"] = [0.5, gate]
        await d.press("f5")
        await d.until(lambda: d.app.loading)
        await d.press("ctrl+n")
        gate.set()
        await d.until(lambda: d.app.session is after)
        assert d.contents == [] and after.asked == []

    drive(body, tmp_path, opener=opener)
