"""The list of conversations, by keyboard and by mouse."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input, Static
from tui.waiting import until

from localllm.tui.conversations.dates import day_text, grouped
from localllm.tui.conversations.kinds import Conversation
from localllm.tui.conversations.store import Conversations
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.sidebar import ActionLabel, Sidebar

NASTY = "[/red] [b \x1b]0;t\x07 \u202eabc"


class Alone(App[None]):
    """The sidebar and nothing else; `told` is what it said."""

    def __init__(self, store: Conversations) -> None:
        super().__init__()
        self.sidebar = Sidebar(store)
        self.told: list[Message] = []

    def compose(self) -> ComposeResult:
        yield self.sidebar
        yield KeyLine()

    def on_mount(self) -> None:
        self.sidebar.list.focus()

    def on_sidebar_chosen(self, event: Sidebar.Chosen) -> None:
        self.told.append(event)

    def on_sidebar_deleted(self, event: Sidebar.Deleted) -> None:
        self.told.append(event)

    def on_sidebar_left(self, event: Sidebar.Left) -> None:
        self.told.append(event)

    def on_sidebar_export_wanted(self, event: Sidebar.ExportWanted) -> None:
        self.told.append(event)

    @property
    def lines(self) -> list[str]:
        """What the list shows."""
        options = self.sidebar.list.options
        return [str(option.prompt).strip() for option in options]


Step = Callable[["Alone", Pilot[None], Conversations], Awaitable[None]]


def run(tmp_path: Path, step: Step, titles: tuple[str, ...] = ("one", "two", "three")) -> None:
    store = Conversations(tmp_path / "c.sqlite")
    for title in titles:
        store.add(store.create(title=title).id, None, "user", f"about {title}")

    async def body() -> None:
        app = Alone(store)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(app.lines) > 0)
            await step(app, pilot, store)

    try:
        asyncio.run(body())
    finally:
        store.close()


def test_groups_by_days() -> None:
    now = datetime.datetime(2026, 3, 1, 0, 30)
    ages = {"0:10": 1 / 72, "yesterday": 0.05, "3 days": 3.0, "6 days": 6.0, "8 days": 8.0}
    made = [
        Conversation(n, title, updated=(now - datetime.timedelta(days=days)).timestamp())
        for n, (title, days) in enumerate(ages.items(), 1)
    ]
    made.append(Conversation(9, "pin", updated=0, pinned=True))
    made.append(Conversation(10, "future", updated=now.timestamp() + 1e6))
    made.append(Conversation(11, "never", updated=1e300))
    groups = {name: [c.title for c in members] for name, members in grouped(made, now)}
    assert groups == {
        "Pinned": ["pin"],
        "Today": ["0:10", "future"],
        "Yesterday": ["yesterday"],
        "This week": ["3 days", "6 days"],
        "Older": ["8 days", "never"],
    }
    assert list(groups) == ["Pinned", "Today", "Yesterday", "This week", "Older"]
    assert day_text(now.timestamp(), now) == "00:30"
    assert day_text(now.timestamp() - 86400, now) == "2026-02-28"


def test_it_lists_chooses_and_leaves(tmp_path: Path) -> None:
    async def step(app: Alone, pilot: Pilot[None], store: Conversations) -> None:
        assert app.lines == ["Today", "three", "two", "one"]
        await pilot.press("down", "enter")
        two = store.listed()[1]
        await until(pilot, lambda: bool(app.told))
        assert isinstance(app.told[0], Sidebar.Chosen)
        assert app.told[0].conversation == two.id
        app.sidebar.current = two.id
        app.sidebar.reload()
        await until(pilot, lambda: "> two" in app.lines)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.told[-1], Sidebar.Left))

    run(tmp_path, step)


def test_it_begins_at_the_conversation_that_is_shown(tmp_path: Path) -> None:
    store = Conversations(tmp_path / "c.sqlite")
    ids = [store.create(title=title).id for title in ("one", "two", "three")]
    for id in ids:
        store.add(id, None, "user", "x")

    async def body() -> None:
        app = Alone(store)
        app.sidebar.current = ids[0]
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.lines == ["Today", "three", "two", "> one"])
            assert app.sidebar.highlighted == ids[0]

    asyncio.run(body())
    store.close()


def test_keys_rename_pin_tag_delete_and_undo(tmp_path: Path) -> None:
    async def step(app: Alone, pilot: Pilot[None], store: Conversations) -> None:
        await pilot.press("r")
        entry = app.query_one("#entry", Input)
        assert entry.value == "three"
        await pilot.press("end", *"3!", "enter")
        await until(pilot, lambda: "three3!" in app.lines)
        await pilot.press("r", "x", "escape")
        assert not entry.display
        await pilot.press("down", "p")
        await until(pilot, lambda: app.lines[:2] == ["Pinned", "* two"])
        await pilot.press("t", *"work, a b", "enter")
        await until(pilot, lambda: app.lines[1] == "* two #a b #work")
        await pilot.press("p")
        await until(pilot, lambda: app.lines[0] == "Today")
        await pilot.press("d")
        await until(pilot, lambda: app.lines == ["Today", "three3!", "one"])
        assert isinstance(app.told[-1], Sidebar.Deleted)
        assert "'two': u" in str(app.query_one("#said", Static).content)
        await pilot.press("delete")
        await until(pilot, lambda: len(app.lines) == 2)
        await pilot.press("u", "ctrl+z")
        await until(pilot, lambda: len(app.lines) == 4)
        assert store.listed()[1].tags == ("a b", "work")
        await pilot.press("u")
        assert "nothing" in str(app.query_one("#said", Static).content)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.told[-1], Sidebar.ExportWanted))

    run(tmp_path, step)


def test_the_mouse_does_it_all(tmp_path: Path) -> None:
    async def step(app: Alone, pilot: Pilot[None], store: Conversations) -> None:
        def action(name: str) -> ActionLabel:
            return next(a for a in app.query(ActionLabel) if str(a.content) == name)

        assert await pilot.click(app.sidebar.list, offset=(4, 2))  # two
        await until(pilot, lambda: bool(app.told))
        chosen = app.told[0]
        assert isinstance(chosen, Sidebar.Chosen)
        assert chosen.conversation == store.listed()[1].id
        assert await pilot.click(action("Pin"))
        await until(pilot, lambda: app.lines[1] == "* two")
        assert await pilot.click(action("Delete"))
        await until(pilot, lambda: len(app.lines) == 3)
        assert await pilot.click(action("Undo"))
        await until(pilot, lambda: len(app.lines) == 5)
        assert await pilot.click(action("Rename"))
        await pilot.press(*"new", "enter")
        await until(pilot, lambda: any(line.endswith("new") for line in app.lines))
        assert await pilot.click("#filter")
        await pilot.press(*"new")
        await until(pilot, lambda: len(app.lines) == 2)

    run(tmp_path, step)


def test_the_filter_takes_words_and_tags(tmp_path: Path) -> None:
    async def step(app: Alone, pilot: Pilot[None], store: Conversations) -> None:
        store.change(store.listed()[0].id, tags=["x y", "z"])
        await pilot.press("slash", *"ONE")
        await until(pilot, lambda: app.lines == ["Today", "one"])
        await pilot.press("escape")
        await until(pilot, lambda: len(app.lines) == 4)
        await pilot.press("slash", *"#z")
        await until(pilot, lambda: app.lines == ["Today", "three #x y #z"])
        await pilot.press("q")
        await until(pilot, lambda: app.lines == ["nothing has these words"])
        await pilot.press("enter", "d")
        assert "choose" in str(app.query_one("#said", Static).content)

    run(tmp_path, step)


def test_what_another_program_says_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localllm.tui.widgets.sidebar.REFRESH_S", 0.05)

    async def step(app: Alone, pilot: Pilot[None], store: Conversations) -> None:
        assert app.lines == ["no conversations yet"]
        other = Conversations(store.file)
        other.add(other.create(title="theirs").id, None, "user", "hello")
        assert other.flush()
        await until(pilot, lambda: app.lines == ["Today", "theirs"])
        other.close()

    run(tmp_path, step, ())


def test_nasty_titles_are_text(tmp_path: Path) -> None:
    async def step(app: Alone, pilot: Pilot[None], store: Conversations) -> None:
        shown = r"[/red] [b \x1b]0;t\x07 \u202eabc"
        assert app.lines == ["Today", shown]
        store.change(store.listed()[0].id, tags=[NASTY])
        app.sidebar.reload()
        await until(pilot, lambda: app.lines[1] == f"{shown} #{shown}"[: len(app.lines[1])])
        await pilot.press("r", "enter")
        assert store.listed()[0].title == NASTY  # nothing was changed
        await pilot.press("t", "escape", "d")
        assert r"\x1b" in str(app.query_one("#said", Static).content)
        await pilot.press("u")

    run(tmp_path, step, (NASTY,))


@pytest.mark.parametrize("width", [60, 120])
def test_it_has_room_beside_the_chat(tmp_path: Path, width: int) -> None:
    store = Conversations(tmp_path / "c.sqlite")
    store.add(store.create(title="word " * 50).id, None, "user", "x")

    async def body() -> None:
        app = Alone(store)
        async with app.run_test(size=(width, 20)) as pilot:
            await until(pilot, lambda: len(app.lines) > 0)
            assert 20 <= app.sidebar.size.width <= 36
            assert all(a.region.right <= app.sidebar.region.right for a in app.query(ActionLabel))

    asyncio.run(body())
    store.close()
