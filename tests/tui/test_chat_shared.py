"""Two programs on one file of conversations: what one deletes, the other still shows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tui.driving import Driven, drive
from tui.fakes import FakeSession

from localllm.tui.conversations.store import Conversations


def _delete_elsewhere(d: Driven) -> None:
    """As another chat does that deletes the conversation and quits."""
    assert d.store.flush()
    other = Conversations(d.store.file)
    try:
        other.delete(d.chat.renew().id)
    finally:
        assert other.close() is None


def test_a_question_to_a_deleted_conversation_is_not_lost(tmp_path: Path) -> None:
    session = FakeSession([["one"], ["two"]])

    async def body(d: Driven) -> None:
        await d.ask("first")
        _delete_elsewhere(d)
        await d.type("second")
        await d.press("enter")
        await d.until(lambda: d.idle and d.contents == ["second", "two"])
        await d.until(lambda: "deleted by another program" in d.text)
        assert [m["content"] for m in session.asked[1][0]] == ["second"]
        assert [v.message.content for v in d.chat.transcript.views] == ["second", "two"]
        assert d.store.flush()
        assert d.store.listed()[0].title == "first", "it is listed again, under its name"

    drive(body, tmp_path, session=session)


@pytest.mark.parametrize("key", ["f5", "f2", "ctrl+s"])
def test_keys_in_a_deleted_conversation(tmp_path: Path, key: str) -> None:
    async def body(d: Driven) -> None:
        await d.ask("first")
        _delete_elsewhere(d)
        await d.press(key)
        await d.until(lambda: d.idle)

    drive(body, tmp_path)


def test_deleted_while_it_is_answered(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        await d.type("first")
        await d.press("enter")
        await d.until(lambda: "so far" in d.text)
        _delete_elsewhere(d)
        gate.set()
        await d.until(lambda: d.idle)
        assert d.store.flush()  # with it the conversation is there again
        assert "so far and on" in d.text and d.contents == ["so far and on"]

    drive(body, tmp_path, session=FakeSession([["so far", gate, " and on"]]))
