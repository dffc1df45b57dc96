"""Driving the chat without a terminal: an app over fakes, keys, and waiting for conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from tui.fakes import FakeOpener, FakeSession
from tui.waiting import screen_text, until

from localllm.tui.app import ChatApp
from localllm.tui.conversations.kinds import Message
from localllm.tui.conversations.store import Conversations
from localllm.tui.opening import Beginning
from localllm.tui.screens.chat import ChatScreen
from localllm.tui.widgets.message import Notice


class Driven:
    """A chat and its pilot."""

    def __init__(self, app: ChatApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self.store: Conversations = app.store

    @property
    def chat(self) -> ChatScreen:
        """The chat screen, also where another one lies over it."""
        return next(each for each in self.app.screen_stack if isinstance(each, ChatScreen))

    async def until(self, condition: Callable[[], object]) -> None:
        """See `waiting.until`."""
        await until(self.pilot, condition)

    async def type(self, text: str) -> None:
        """Puts a text where one types, as keys would."""
        self.chat.composer.editor.focus()
        self.chat.composer.editor.insert(text)
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def ask(self, text: str) -> None:
        """Sends a text and waits for the answer's end."""
        n = len(self.path)
        await self.type(text)
        await self.press("enter")
        await self.until(lambda: len(self.path) >= n + 2 and self.idle)

    @property
    def idle(self) -> bool:
        """Whether no answer runs, nor is to come."""
        return self.chat.answering is None and not self.chat.turning and not self.chat.queued

    @property
    def path(self) -> list[Message]:
        """The messages that are shown, as they are kept."""
        assert self.chat.conversation is not None
        return list(self.store.path(self.chat.conversation.id))

    @property
    def contents(self) -> list[str]:
        return [message.content for message in self.path]

    @property
    def text(self) -> str:
        """The screen as text."""
        return screen_text(self.app)

    @property
    def notices(self) -> str:
        """The remarks between the messages. On the screen their lines end where the length of a
        path has it."""
        return "\n".join(str(notice.content) for notice in self.chat.transcript.query(Notice))


def drive(
    body: Callable[[Driven], Awaitable[None]],
    folder: Path,
    *,
    session: FakeSession | None = None,
    opener: FakeOpener | None = None,
    size: tuple[int, int] = (80, 24),
    beginning: Beginning | None = None,
    loaded: bool = True,
    **more: Any,
) -> None:
    """Runs `body` in a chat whose files lie in a folder. loaded: waits for the model first. more:
    for the app."""
    if opener is None:
        opener = FakeOpener({"fake:135m": session or FakeSession()})

    async def run() -> None:
        store = Conversations(folder / "conversations.db")
        app = ChatApp(opener, store, beginning, config=folder / "config", **more)
        try:
            async with app.run_test(size=size) as pilot:
                driven = Driven(app, pilot)
                await driven.until(lambda: any(isinstance(s, ChatScreen) for s in app.screen_stack))
                await driven.until(lambda: driven.chat.conversation is not None)
                if loaded:
                    await driven.until(lambda: app.session is not None and not app.loading)
                await body(driven)
        finally:
            store.close()

    asyncio.run(run())
