"""Export and import, by keyboard and by mouse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static
from tui.waiting import until

from localllm.tui.conversations.store import Conversations
from localllm.tui.screens.path_dialog import PathSuggester
from localllm.tui.screens.transfer import ExportScreen, ImportScreen


class Asking(App[None]):
    """Only a dialog; `results` is what came of it."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._dialog = screen
        self.results: list[Any] = []

    def on_mount(self) -> None:
        self.push_screen(self._dialog, self.results.append)

    @property
    def said(self) -> str:
        return str(self.screen.query_one("#said", Static).content)

    @property
    def path(self) -> str:
        return self.screen.query_one(Input).value


Step = Callable[[Asking, Pilot[None]], Awaitable[None]]


def run(screen: Screen[Any], step: Step, size: tuple[int, int] = (80, 24)) -> None:
    async def body() -> None:
        app = Asking(screen)
        async with app.run_test(size=size) as pilot:
            await step(app, pilot)

    asyncio.run(body())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    made = Conversations(tmp_path / "c.sqlite")
    for title in ("One", "Two"):
        made.add(made.create(title=title).id, None, "user", f"about {title}")
    yield made
    made.close()


def test_export_writes_and_asks_before_it_replaces(store: Conversations, tmp_path: Path) -> None:
    two = store.listed()[0]

    async def step(app: Asking, pilot: Pilot[None]) -> None:
        assert app.path == "conversation-two.md"
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.results))

    async def again(app: Asking, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "already" in app.said)
        assert not app.results
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.results))

    run(ExportScreen(store, two), step)
    path = tmp_path / "conversation-two.md"
    assert path.read_text().startswith("# Two")
    path.write_text("x")
    run(ExportScreen(store, two), again, (60, 20))
    assert path.read_text().startswith("# Two")


def test_the_mouse_chooses_json_and_all_of_them(store: Conversations, tmp_path: Path) -> None:
    async def step(app: Asking, pilot: Pilot[None]) -> None:
        def marks() -> list[str]:
            buttons = app.screen.query("#md, #json, #all")
            return [str(button.render())[1] for button in buttons]

        assert marks() == ["●", " ", " "]  # not by colour alone
        assert await pilot.click("#json")
        await until(pilot, lambda: app.path == "conversation-two.json")
        assert marks() == [" ", "●", " "]
        assert await pilot.click("#md")
        await until(pilot, lambda: app.path == "conversation-two.md")
        assert await pilot.click("#json")
        assert await pilot.click("#all")
        await until(pilot, lambda: app.path == "conversation-two.json")
        await pilot.click("#path")
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.results))

    async def back(app: Asking, pilot: Pilot[None]) -> None:
        await pilot.press(*"conv")
        await pilot.press("enter")
        await until(pilot, lambda: "cannot read" in app.said)
        field = app.screen.query_one(Input)
        await until(pilot, lambda: field._suggestion == "conversation-two.json")
        await pilot.press("right", "enter")
        await until(pilot, lambda: bool(app.results))
        assert len(app.results[0].conversations) == 2

    run(ExportScreen(store, store.listed()[0]), step)
    run(ImportScreen(store), back)
    assert [c.title for c in store.listed()] == ["Two", "Two", "One", "One"]


def test_errors_stay_in_the_dialog(store: Conversations, tmp_path: Path) -> None:
    (tmp_path / "[b t.json").write_text("{}")

    async def step(app: Asking, pilot: Pilot[None]) -> None:
        for path, words in (
            (str(tmp_path), "is a folder"),
            ("none/x.json", "cannot read"),
            ("~nobody-of-that-name/x", "names no folder"),
            ("[b \x1b]0;t.json", "cannot read '[b "),  # only what is shown is looked for
            ("[b t.json", "[b t.json: these are no conversations"),
        ):
            app.screen.query_one(Input).value = path
            await pilot.press("enter")
            await until(pilot, lambda words=words: words in app.said)
        assert not app.results
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None])

    run(ImportScreen(store), step)


def test_names_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("talk.json", "talk.txt", "folder/a.MD", "ta\x1b.json"):
        (tmp_path / name).write_text("")
    suggester = PathSuggester((".md", ".json"))
    assert suggester.suggest("ta") == "talk.json"
    assert suggester.suggest("fo") == "folder/"
    assert suggester.suggest("folder/a") == "folder/a.MD"
    assert suggester.suggest(f"{tmp_path}/ta") == f"{tmp_path}/talk.json"
    for nothing in ("", "x", "folder/", "none/x", "~nobody-of-that-name/x", "a\0b"):
        assert suggester.suggest(nothing) is None
