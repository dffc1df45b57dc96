"""The search in all conversations, by keyboard and by mouse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static
from tui.waiting import until

from localllm.tui.conversations.kinds import Hit
from localllm.tui.conversations.store import Conversations
from localllm.tui.screens.search import SearchScreen

NASTY = "[/red] needle [b \x1b]0;t\x07 \u202eabc\nmore"


class Searching(App[None]):
    """Only the search; `results` is where it led to."""

    def __init__(self, store: Conversations, text: str = "") -> None:
        super().__init__()
        self._store, self._begin = store, text
        self.results: list[Hit | None] = []

    def on_mount(self) -> None:
        self.push_screen(SearchScreen(self._store, self._begin), self.results.append)

    @property
    def lines(self) -> list[str]:
        return [str(option.prompt) for option in self.screen.query_one(OptionList).options]

    @property
    def said(self) -> str:
        return str(self.screen.query(Static).last().content)


Step = Callable[[Searching, Pilot[None], Conversations], Awaitable[None]]


def run(tmp_path: Path, step: Step, begin: str = "", size: tuple[int, int] = (80, 24)) -> None:
    store = Conversations(tmp_path / "c.sqlite")
    first = store.create(title="Foxes and hounds")
    question = store.add(first.id, None, "user", "Tell me of the quick fox.")
    store.add(first.id, question.id, "assistant", "A fox is quick.", finish_reason="stop")
    store.add(store.create(title=NASTY).id, None, "user", NASTY)

    async def body() -> None:
        app = Searching(store, begin)
        async with app.run_test(size=size) as pilot:
            await step(app, pilot, store)

    try:
        asyncio.run(body())
    finally:
        store.close()


def test_it_finds_as_one_types_and_jumps(tmp_path: Path) -> None:
    async def step(app: Searching, pilot: Pilot[None], store: Conversations) -> None:
        await pilot.press(*"fox")
        await until(pilot, lambda: len(app.lines) == 3)
        assert app.lines[0].startswith("title, ")
        assert app.lines[0].endswith("Foxes and hounds")
        assert app.lines[1].startswith("answer, ")
        assert app.lines[1].endswith("\n  A fox is quick.")
        assert app.said == "3 places"
        await pilot.press("down", "down", "up", "enter")
        await until(pilot, lambda: bool(app.results))
        hit = app.results[0]
        assert hit is not None
        assert store.open_at(hit.message or 0).messages[-1].content == "A fox is quick."

    run(tmp_path, step)


def test_the_mouse_chooses(tmp_path: Path) -> None:
    async def step(app: Searching, pilot: Pilot[None], store: Conversations) -> None:
        await until(pilot, lambda: len(app.lines) == 2)
        assert await pilot.click(OptionList, offset=(5, 3))
        await until(pilot, lambda: bool(app.results))
        hit = app.results[0]
        assert hit is not None
        assert hit.role == "user"

    run(tmp_path, step, "quick")


def test_nothing_found_and_leaving(tmp_path: Path) -> None:
    async def step(app: Searching, pilot: Pilot[None], store: Conversations) -> None:
        await pilot.press(*"xyzzy", "enter")
        await until(pilot, lambda: app.said == "nothing has all these words")
        await pilot.press("enter")
        assert not app.results
        await pilot.press("escape")
        await until(pilot, lambda: bool(app.results))
        assert app.results == [None]

    run(tmp_path, step)


@pytest.mark.parametrize("text", ['"', "needle AND (", "[b", "NEAR(", "*", "\\"])
def test_any_text_is_a_query(tmp_path: Path, text: str) -> None:
    async def step(app: Searching, pilot: Pilot[None], store: Conversations) -> None:
        await until(pilot, lambda: "place" in app.said or "nothing" in app.said)
        assert store.trouble is None

    run(tmp_path, step, text)


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
def test_nasty_texts_are_text(tmp_path: Path, size: tuple[int, int]) -> None:
    async def step(app: Searching, pilot: Pilot[None], store: Conversations) -> None:
        await until(pilot, lambda: len(app.lines) == 2)
        for line in app.lines:
            assert r"[/red] needle [b \x1b]0;t\x07 \u202eabc more" in line
            assert not set(line) & {"\x1b", "\x07", "\u202e"}
        field = app.screen.query_one(Input)
        assert field.value == "needle"

    run(tmp_path, step, "needle", size)
