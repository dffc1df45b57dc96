"""Questions that are sent while an answer runs, or before there is a model."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession
from tui.waiting import notes_of

from localllm.errors import LocalLLMError
from localllm.tui.conversations.kinds import Message
from localllm.tui.conversations.store import Conversations
from localllm.tui.widgets.message import MessageView


async def _ask_two(d: Driven) -> int:
    """One question that is being answered, and one that waits; their conversation."""
    await d.type("one")
    await d.press("enter")
    await d.until(lambda: "first" in d.text)
    await d.type("two")
    await d.press("enter")
    await d.until(lambda: "1 queued" in d.text and not d.chat.composer.text)
    return d.chat.renew().id


def test_it_is_asked_where_it_was_typed(tmp_path: Path) -> None:
    gate = threading.Event()
    session = FakeSession([["first", gate], ["second"]])

    async def body(d: Driven) -> None:
        first = await _ask_two(d)
        await d.press("ctrl+n")
        await d.until(lambda: d.chat.renew().id != first)
        assert "1 queued in other conversations" in d.text and not d.chat.composer.text
        await d.type("typed meanwhile")
        gate.set()
        await d.until(lambda: d.idle)
        assert not d.contents and d.chat.composer.text == "typed meanwhile"
        there = d.store.path(first)
        assert [m.content for m in there] == ["one", "first", "two", "second"]
        assert session.asked_in == [str(first)] * 2
        assert d.store.open(first).conversation.draft == ""
        await d.chat.show_conversation(first)
        await d.until(lambda: "second" in d.text)
        assert not d.chat.composer.text

    drive(body, tmp_path, session=session)


def test_one_that_comes_while_an_answer_ends_is_not_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, end = threading.Event(), MessageView.end
    held: list[asyncio.Event] = []

    async def slowly(view: MessageView, message: Message) -> None:
        if not held:
            held.append(asyncio.Event())
            await held[0].wait()
        await end(view, message)

    monkeypatch.setattr(MessageView, "end", slowly)
    session = FakeSession([["first", gate], ["second"], ["third"]])

    async def body(d: Driven) -> None:
        await _ask_two(d)
        gate.set()
        await d.until(lambda: held)
        await d.type("three")
        await d.press("enter", "f5")
        assert "An answer is on its way" in notes_of(d.app)
        held[0].set()
        await d.until(lambda: d.idle)
        assert d.contents == ["one", "first", "two", "second", "three", "third"]

    drive(body, tmp_path, session=session)


@pytest.mark.parametrize("how", ["ctrl+q", "kill"])
def test_it_is_kept_when_the_program_ends(tmp_path: Path, how: str) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        await _ask_two(d)
        await d.type("three")
        if how == "ctrl+q":
            await d.press("ctrl+q")
        gate.set()  # nothing has looked at it yet
        assert d.store.flush()
        killed = Conversations(d.store.file)  # what another program finds now
        try:
            assert killed.listed()[0].draft == "two\n\nthree"
        finally:
            killed.close()

    drive(body, tmp_path, session=FakeSession([["first", gate]]))


def test_it_does_not_bring_a_deleted_conversation_back(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        first = await _ask_two(d)
        await d.press("ctrl+b")
        await d.until(lambda: "> one" in d.text)
        await d.press("d")
        await d.until(lambda: d.chat.renew().id != first)
        gate.set()
        await d.until(lambda: d.idle)
        assert [m.content for m in d.store.path(first)] == ["one", "first"]
        assert d.store.open(first).conversation.deleted_at is not None
        await d.press("u")
        await d.until(lambda: d.store.listed())
        await d.chat.show_conversation(first)
        assert d.chat.composer.text == "two"

    drive(body, tmp_path, session=FakeSession([["first", gate], ["second"]]))


@pytest.mark.parametrize("by", ["stop", "error"])
def test_it_comes_back_when_the_answer_ends_early(tmp_path: Path, by: str) -> None:
    gate = threading.Event()
    session = FakeSession([["first", gate, LocalLLMError("gone")], ["second"]])

    async def body(d: Driven) -> None:
        await _ask_two(d)
        await d.type("three")
        if by == "stop":
            await d.press("escape")
        else:
            gate.set()
        await d.until(lambda: d.idle)
        assert d.chat.composer.text == "two\n\nthree" and "queued" not in d.text
        await d.press("enter")
        await d.until(lambda: d.idle and d.contents[2:] == ["two\n\nthree", "second"])

    drive(body, tmp_path, session=session)


def test_it_comes_back_when_no_model_can_be_opened(tmp_path: Path) -> None:
    gate = threading.Event()
    opener = FakeOpener(loads={"fake:135m": [gate, LocalLLMError("the file is gone")]})

    async def body(d: Driven) -> None:
        await d.type("one")
        await d.press("enter")
        await d.until(lambda: "1 queued" in d.text)
        gate.set()
        await d.until(lambda: d.chat.composer.text == "one" and not d.chat.queued)

    drive(body, tmp_path, opener=opener, loaded=False)


@pytest.mark.parametrize("key", ["f5", "f6", "f7", "f8"])
def test_keys_during_an_answer_say_why_not(tmp_path: Path, key: str) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        await d.type("one")
        await d.press("enter")
        await d.until(lambda: "first" in d.text)
        await d.press(key)
        await d.until(lambda: "An answer is on its way" in notes_of(d.app))
        gate.set()
        assert d.contents == ["one", "first"] and d.chat.editing is None

    drive(body, tmp_path, session=FakeSession([["first", gate]]))


def test_an_edit_waits_for_the_answer(tmp_path: Path) -> None:
    gate = threading.Event()
    session = FakeSession([["first"], ["second", gate], ["third"]])

    async def body(d: Driven) -> None:
        await d.ask("one")
        await d.press("f8")
        await d.chat.send("two", ())  # as one that was queued
        await d.press("!", "enter")
        await d.until(lambda: "An answer is on its way" in notes_of(d.app))
        assert d.chat.composer.text == "one!" and len(d.path) == 4
        gate.set()
        await d.until(lambda: d.idle)
        await d.press("enter")
        await d.until(lambda: d.idle and d.contents == ["one!", "third"])

    drive(body, tmp_path, session=session)
