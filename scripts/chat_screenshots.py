"""Draws what `localllm chat` shows with a real model, for the README: chat.svg, models.svg,
figures.svg and compare.svg in docs.

Usage: chat_screenshots.py [FOLDER] (where smollm2:135m is pulled, and `brief` made as in README).
FOLDER: in place of docs. Conversations are held in a folder that is deleted in the end;
models are those of this user.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localllm import paths

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from localllm.tui.app import ChatApp

MODEL = "smollm2:135m"
SIZE = (120, 34)
QUESTIONS = (
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that adds two numbers.",
)
DETAILS_OF = "gemma3:1b"
COMPARED_WITH = "brief"
COMPARED = "What is a rainbow?"
_SAMPLING = {"seed": 1, "temperature": 0.2, "max_tokens": 220}
_WAIT_S = 120.0
#: A page that shows the picture should ask nobody for a font.
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Raises `TimeoutError` if it does not come."""
    ends = asyncio.get_running_loop().time() + _WAIT_S
    while not condition():
        if asyncio.get_running_loop().time() > ends:
            raise TimeoutError(f"it did not come:\n{pilot.app.export_screenshot()[-2000:]}")
        await pilot.pause(0.05)
    await pilot.pause(0.3)


async def ask(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    """Types a question and waits for the end of its answer."""
    from localllm.tui.screens.chat import ChatScreen

    chat = app.screen
    assert isinstance(chat, ChatScreen)
    n_before = len(answers(app, chat))
    chat.composer.editor.insert(text)
    await pilot.press("enter")
    await until(pilot, lambda: len(answers(app, chat)) > n_before and chat.answering is None)


def answers(app: ChatApp, chat: object) -> list[object]:
    """Those of the conversation that are at their end."""
    conversation = getattr(chat, "conversation", None)
    if conversation is None:
        return []
    path = app.store.path(conversation.id)
    return [each for each in path if each.role == "assistant" and each.finish_reason]


async def draw(folder: Path) -> list[Path]:
    """Holds the conversation; returns the pictures."""
    from localllm.cli.chat_opening import LocalOpener
    from localllm.cli.loading_options import Opening
    from localllm.tui.app import ChatApp
    from localllm.tui.conversations.store import Conversations
    from localllm.tui.opening import Beginning
    from localllm.tui.screens.models import ModelTable

    written: list[Path] = []

    def picture(name: str, title: str) -> None:
        path = folder / f"{name}.svg"
        path.write_text(_FONT_FACE.sub("", app.export_screenshot(title=title)), encoding="utf-8")
        written.append(path)

    opener, store = LocalOpener(MODEL, Opening()), Conversations()
    app = ChatApp(opener, store, Beginning(sampling=_SAMPLING))
    try:
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: app.session is not None)
            for question in QUESTIONS:
                await ask(app, pilot, question)
            picture("chat", "localllm chat")
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(app.screen.query(ModelTable)) > 0)
            table = app.screen.query_one(ModelTable)
            await until(pilot, lambda: table.row_count > 0 and "..." not in shown(table))
            rows = [str(table.get_row_at(row)[0]) for row in range(table.row_count)]
            table.move_cursor(row=next(i for i, row in enumerate(rows) if DETAILS_OF in row))
            await pilot.pause(2.0)  # for what is read of it
            picture("models", "localllm chat: models")
            await pilot.press("escape")
            await pilot.press("f3")
            await pilot.pause(2.0)  # the figures come twice a second
            picture("figures", "localllm chat: figures")
            await pilot.press("escape")
            await compare(app, pilot)
            picture("compare", "localllm chat: compare two models")
    finally:
        store.close()
        opener.close()
    return written


async def compare(app: ChatApp, pilot: Pilot[None]) -> None:
    """Asks two models one question in a new conversation, and waits for both answers."""
    from textual.widgets import Select

    from localllm.tui.screens.chat import ChatScreen
    from localllm.tui.screens.compare import CompareScreen

    await pilot.press("ctrl+n")
    chat = app.screen
    assert isinstance(chat, ChatScreen)
    chat.composer.editor.insert(COMPARED)
    chat.action_compare()
    await until(pilot, lambda: isinstance(app.screen, CompareScreen))
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    await until(pilot, lambda: all(view.name_chosen for view in screen.views))
    for view, name in zip(screen.views, (MODEL, COMPARED_WITH), strict=True):
        view.query_one(Select).value = name
    await screen.action_ask()
    await until(pilot, lambda: all(view.ended for view in screen.views))


def shown(table: object) -> str:
    """The cells of the rows that can be seen."""
    from localllm.tui.screens.models import ModelTable

    assert isinstance(table, ModelTable)
    rows = range(min(table.row_count, SIZE[1]))
    return " ".join(str(cell) for row in rows for cell in table.get_row_at(row))


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    models = paths.current().models
    with tempfile.TemporaryDirectory() as home:
        Path(home, "models").symlink_to(models)
        os.environ[paths.HOME_VARIABLE] = home
        os.environ.pop("NO_COLOR", None)
        for path in asyncio.run(draw(folder)):
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
