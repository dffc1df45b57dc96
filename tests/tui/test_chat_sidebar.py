"""The list of conversations beside a chat: its keys count before those of the chat."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input
from tui.driving import Driven, drive
from tui.fakes import FakeSession

from localllm.tui.widgets.sidebar import Sidebar


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))


def _sidebar(d: Driven) -> Sidebar:
    sidebar = d.chat.sidebar
    assert sidebar is not None
    return sidebar


def test_escape_leaves_what_is_entered_then_the_list(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question")
        await d.press("ctrl+b")
        await d.until(lambda: "> a question" in d.text)
        entry = _sidebar(d).query_one("#entry", Input)
        await d.press("r")
        await d.until(lambda: entry.display and d.app.focused is entry)
        await d.press("x", "escape")
        await d.until(lambda: not entry.display and d.app.focused is _sidebar(d).list)
        assert d.store.listed()[0].title == "a question"
        await d.press("slash", *"none")
        await d.until(lambda: "nothing has these words" in d.text)
        await d.press("escape")
        await d.until(lambda: "> a question" in d.text)
        await d.press("escape")
        await d.until(lambda: d.app.focused is d.chat.composer.editor)

    drive(body, tmp_path)


def test_pages_are_those_of_the_list(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        for n in range(60):
            d.store.add(d.store.create(title=f"t{n}").id, None, "user", "x")
        await d.press("ctrl+b")
        await d.until(lambda: "t59" in d.text)
        shown = _sidebar(d).list
        await d.press("ctrl+home")
        begin = shown.highlighted or 0
        await d.press("pagedown")
        await d.until(lambda: (shown.highlighted or 0) > begin + 3)
        await d.press("pageup")
        await d.until(lambda: (shown.highlighted or 0) <= begin + 3)
        await d.press("ctrl+end")
        await d.until(lambda: "t0" in d.text)

    drive(body, tmp_path)


def test_a_deleted_conversation_comes_back(tmp_path: Path) -> None:
    session = FakeSession([["an answer"]])

    async def body(d: Driven) -> None:
        await d.ask("a question")
        first = d.chat.renew().id
        await d.press("ctrl+b")
        await d.until(lambda: "> a question" in d.text)
        await d.press("d")
        await d.until(lambda: d.chat.renew().id != first)
        assert not d.path
        await d.until(lambda: _sidebar(d).highlighted is None)
        await d.press("u")
        await d.until(lambda: _sidebar(d).highlighted == first)  # the list is read by a thread
        await d.press("enter")
        await d.until(lambda: d.chat.renew().id == first)
        assert d.contents == ["a question", "an answer"]

    drive(body, tmp_path, session=session)


def test_it_makes_room_on_a_narrow_screen(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.until(lambda: d.chat.sidebar is not None and "Filter" in d.text)
        await d.pilot.resize_terminal(60, 24)
        await d.until(lambda: not _sidebar(d).display)
        await d.until(lambda: "Search" in d.text and "Quit" in d.text)
        await d.pilot.resize_terminal(120, 24)
        await d.until(lambda: _sidebar(d).display and "palette" in d.text)

    drive(body, tmp_path, size=(120, 24))


def test_one_key_leads_to_the_list_and_back(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.until(lambda: d.chat.sidebar is not None and "Filter" in d.text)
        await d.press("ctrl+b")
        await d.until(lambda: d.app.focused is _sidebar(d).list and _sidebar(d).display)
        await d.press("ctrl+b")
        await d.until(lambda: d.app.focused is d.chat.composer.editor)
        assert not _sidebar(d).display
        await d.pilot.resize_terminal(90, 24)
        await d.pilot.resize_terminal(120, 24)
        await d.until(lambda: d.app.size.width == 120)
        assert not _sidebar(d).display, "it was hidden by hand"

    drive(body, tmp_path, size=(120, 24))
