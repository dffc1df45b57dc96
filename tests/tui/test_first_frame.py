"""What takes long at the beginning comes after the first frame, which says what is going on."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from textual import events
from tui.driving import Driven, drive
from tui.fakes import FakeOpener
from tui.test_models_screen import FakeLibrary
from tui.waiting import screen_text, until

from localllm.tui.app import ChatApp
from localllm.tui.conversations.store import Conversations
from localllm.tui.library import ModelRow
from localllm.tui.screens.chat import ChatScreen
from localllm.tui.screens.models import ModelsScreen


class Watched(ChatApp):
    """Notes each frame: its text, and how often the conversations were read before."""

    CSS_PATH = str(Path(sys.modules[ChatApp.__module__].__file__ or "").with_name("tui.tcss"))

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.frames: list[tuple[str, int]] = []

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if screen is self.screen and renderable is not None:
            self.frames.append((screen_text(self), self.store._reading.n_queries))


def test_a_frame_is_there_before_the_conversations_are_read(tmp_path: Path) -> None:
    async def run() -> None:
        store = Conversations(tmp_path / "conversations.db")
        app = Watched(FakeOpener(), store, config=tmp_path)
        try:
            async with app.run_test(size=(80, 24)) as pilot:
                await until(pilot, lambda: app.session is not None and not app.loading)
                text, n_queries = next(each for each in app.frames if "Ask anything" in each[0])
                assert n_queries == 0 and "opening the conversations" in text
                assert "f1 Help" in text and "New chat" in text
                assert "opening" not in screen_text(app) and "looking" not in screen_text(app)
                assert store._reading.n_queries > 0
        finally:
            store.close()

    asyncio.run(run())


class Early(Watched):
    """Somebody types before the first frame is seen."""

    def __init__(self, typed: list[events.Event], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._typed = typed

    def _display(self, screen: Any, renderable: Any) -> None:
        while self._typed:
            self.post_message(self._typed.pop(0))
        super()._display(screen, renderable)


def test_what_is_typed_before_the_first_frame_is_for_the_conversation(tmp_path: Path) -> None:
    keys = [(each, None) for each in ("ctrl+n", "f7", "f5", "ctrl+n")]
    keys += [(each, each) for each in "hi"]
    typed: list[events.Event] = [events.Key(key, character) for key, character in keys]
    typed += [events.Paste(" there"), events.Key("enter", None)]

    async def run() -> None:
        store = Conversations(tmp_path / "conversations.db")
        app = Early(typed, FakeOpener(), store, config=tmp_path)
        try:
            async with app.run_test(size=(80, 24)) as pilot:
                chat = app.screen_stack[-1]
                assert isinstance(chat, ChatScreen)
                await until(
                    pilot, lambda: [each.role for each in chat.path()] == ["user", "assistant"]
                )
                assert chat.path()[0].content == "hi there"
                assert chat.composer.text == ""
        finally:
            store.close()

    asyncio.run(run())


class Slow(FakeOpener):
    """Looks for its models until it may say."""

    def __init__(self, default: str | None) -> None:
        super().__init__(default=default)
        self.may_say = threading.Event()

    def default(self) -> str | None:
        assert self.may_say.wait(30)
        return super().default()


class SlowLibrary(FakeLibrary):
    def __init__(self) -> None:
        super().__init__()
        self.may_say = threading.Event()

    def rows(self) -> tuple[list[ModelRow], list[str]]:
        assert self.may_say.wait(30)
        return super().rows()


@pytest.mark.parametrize("default", ["fake:135m", None])
def test_it_is_said_that_models_are_looked_for(tmp_path: Path, default: str | None) -> None:
    opener, library = Slow(default), SlowLibrary()

    async def body(d: Driven) -> None:
        await d.until(lambda: "looking for models" in d.text)
        opener.may_say.set()
        if default is None:
            await d.until(lambda: isinstance(d.app.screen, ModelsScreen))
            await d.until(lambda: "looking for models ..." in d.text)
            library.may_say.set()
            await d.until(lambda: "old:1b" in d.text)
            await d.press("escape")
        await d.until(lambda: "looking" not in d.text)
        await d.until(lambda: (d.app.session is None) == (default is None))

    drive(body, tmp_path, opener=opener, library=library, loaded=False)
