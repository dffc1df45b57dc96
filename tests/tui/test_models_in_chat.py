"""The screen of models over a chat: a pull that goes on behind it, and a switch of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from tui.fakes import FakeOpener, FakeSession
from tui.test_models_screen import FakeBring, FakeLibrary
from tui.waiting import notes_of, screen_text, until

from localllm.errors import DownloadError
from localllm.store.transfer.patience import KEPT
from localllm.tui.app import ChatApp
from localllm.tui.conversations.store import Conversations
from localllm.tui.opening import LoadOptions
from localllm.tui.pulls import Pulls
from localllm.tui.screens.chat import ChatScreen
from localllm.tui.screens.models import ModelsScreen, ModelTable

Body = Callable[[Pilot[Any], ChatApp, FakeOpener], Awaitable[None]]


def run(folder: Path, body: Body, bring: FakeBring, size: tuple[int, int] = (80, 24)) -> None:
    opener = FakeOpener(
        {"smollm2:135m": FakeSession([["Small."]]), "old:1b": FakeSession([["Old."]])},
        default="smollm2:135m",
    )
    pulls = Pulls(bring)

    async def inside() -> None:
        store = Conversations(folder / "conversations.db")
        app = ChatApp(
            opener, store, config=folder / "config", library=FakeLibrary(), pulls=pulls
        )  # fmt: skip
        try:
            async with app.run_test(size=size) as pilot:
                await until(pilot, lambda: app.session is not None and not app.loading)
                await body(pilot, app, opener)
        finally:
            store.close()

    try:
        asyncio.run(inside())
    finally:
        bring.go.set()
        pulls.close()


async def to_models(pilot: Pilot[Any], app: ChatApp) -> ModelsScreen:
    await pilot.press("ctrl+o")
    await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
    screen = app.screen
    assert isinstance(screen, ModelsScreen)
    await until(pilot, lambda: screen.query_one(ModelTable).row_count == 5)
    return screen


@pytest.mark.parametrize("fails", [False, True])
def test_a_pull_ends_while_one_chats(tmp_path: Path, fails: bool) -> None:
    bring = FakeBring()

    async def body(pilot: Pilot[Any], app: ChatApp, opener: FakeOpener) -> None:
        await to_models(pilot, app)
        await pilot.press("down", "down", "p", "y", "escape")
        await until(pilot, lambda: isinstance(app.screen, ChatScreen))
        await until(pilot, lambda: "pulling" in screen_text(app))  # in the live bar
        if fails:
            bring.fails = DownloadError("cannot fetch it", KEPT)
        bring.go.set()
        wanted = "pull it again" if fails else "qwen3:0.6b-q4_k_m is here"
        await until(pilot, lambda: wanted in notes_of(app))
        assert notes_of(app).count(wanted) == 1
        await until(pilot, lambda: "pulling" not in screen_text(app).replace(wanted, ""))

    run(tmp_path, body, bring)


def test_the_model_is_switched_in_mid_chat(tmp_path: Path) -> None:
    async def body(pilot: Pilot[Any], app: ChatApp, opener: FakeOpener) -> None:
        await pilot.press(*"Hi", "enter")
        await until(pilot, lambda: "Small." in screen_text(app))
        screen = await to_models(pilot, app)
        await until(pilot, lambda: "in use" in screen_text(app))
        await pilot.press("k", "down")
        await until(pilot, lambda: screen.highlighted and screen.highlighted.name == "old:1b")
        await pilot.press("enter")
        await until(pilot, lambda: app.model == "old:1b" and not app.loading)
        assert opener.opened[-1] == ("old:1b", LoadOptions(0, "q8_0"))
        assert opener.sessions["smollm2:135m"].is_closed
        await pilot.press(*"And", "enter")
        await until(pilot, lambda: "Old." in screen_text(app))
        asked = [message["content"] for message in opener.sessions["old:1b"].asked[0][0]]
        assert asked == ["Hi", "Small.", "And"]  # the conversation goes on

    run(tmp_path, body, FakeBring(), (60, 20))
