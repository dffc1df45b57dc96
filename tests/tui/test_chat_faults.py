"""A fault of the program itself, outside of a command: the chat ends, and what was said, what came
of the answer and what was typed are kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.worker import WorkerFailed
from tui.driving import Driven
from tui.fakes import FakeOpener, FakeSession
from tui.waiting import until

from localllm.tui.app import ChatApp
from localllm.tui.conversations.store import Conversations
from localllm.tui.screens.chat import ChatScreen


class Fault(Exception):
    """Of ours."""


def broken(*args: Any, **more: Any) -> None:
    raise Fault("a fault of ours")


def timer(d: Driven) -> None:
    d.chat.set_timer(0.001, broken)


def message(d: Driven) -> None:
    d.chat.post_message(d.app.Said("x"))


def worker(d: Driven) -> None:
    async def run() -> None:
        broken()

    d.app.run_worker(run())


def drawing(d: Driven) -> None:
    d.chat._title.render = broken  # type: ignore[method-assign]
    d.chat._title.refresh()


@pytest.mark.parametrize("breaks", [timer, message, worker, drawing])
def test_a_fault_ends_the_chat_and_all_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[Driven], None]
) -> None:
    file, never = tmp_path / "conversations.db", threading.Event()
    session = FakeSession([["an answer"], ["half of ", "one", never]])
    monkeypatch.setattr(ChatScreen, "on_chat_app_said", broken)

    async def run(store: Conversations) -> ChatApp:
        app = ChatApp(FakeOpener({"fake:135m": session}), store, config=tmp_path)
        with pytest.raises((Fault, WorkerFailed)):
            async with app.run_test() as pilot:
                d = Driven(app, pilot)
                await until(pilot, lambda: app.session is not None and not app.loading)
                await d.ask("one?")
                await d.type("two?")
                await d.press("enter")
                await d.until(lambda: "half of one" in d.text)
                await d.type("three, not sent")
                await d.until(lambda: d.chat.composer.text == "three, not sent")
                breaks(d)
                while app.fault is None:
                    await asyncio.sleep(0.005)
        return app

    store = Conversations(file)
    try:
        assert isinstance(asyncio.run(run(store)).fault, (Fault, WorkerFailed))
    finally:
        never.set()
        assert store.close() is None
    again = Conversations(file)
    try:
        (kept,) = again.listed()
        said = [each.content for each in again.path(kept.id)]
        assert said == ["one?", "an answer", "two?", "half of one"]
        assert kept.draft == "three, not sent"
    finally:
        again.close()
