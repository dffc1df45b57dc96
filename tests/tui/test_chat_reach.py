"""What is reached from the chat: other screens, the palette, long histories, narrow screens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Input, Static, TextArea
from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession

from localllm.errors import FileError
from localllm.tui.app import ChatApp
from localllm.tui.conversations.store import Conversations
from localllm.tui.screens.compare import CompareScreen
from localllm.tui.screens.figures import FiguresScreen
from localllm.tui.screens.help import HelpScreen
from localllm.tui.screens.models import ModelsScreen
from localllm.tui.screens.parameters import ParametersScreen
from localllm.tui.screens.search import SearchScreen
from localllm.tui.screens.transfer import ExportScreen, ImportScreen
from localllm.tui.widgets.live_bar import LiveBar
from localllm.tui.widgets.transcript import FIRST


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("localllm.tui.library.read_speed", lambda places: 20.0)  # takes a while


def test_other_screens(tmp_path: Path) -> None:
    screens = {
        "f2": ParametersScreen,
        "f3": FiguresScreen,
        "ctrl+o": ModelsScreen,
        "ctrl+f": SearchScreen,
        "ctrl+s": ExportScreen,
        "f10": ImportScreen,
    }

    async def body(d: Driven) -> None:
        for key, screen in screens.items():
            await d.press(key)
            await d.until(lambda screen=screen: isinstance(d.app.screen, screen))  # type: ignore[misc]
            await d.press("escape")
            await d.until(lambda: d.app.screen is d.chat)
        await d.pilot.click(LiveBar)
        await d.until(lambda: isinstance(d.app.screen, FiguresScreen))

    drive(body, tmp_path)


def test_an_answer_is_among_the_figures(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        figures = d.chat.history.answers
        assert [(each.model, each.reason) for each in figures] == [("fake:135m", "stop")]

    drive(body, tmp_path)


def test_settings_hold_for_the_conversation(tmp_path: Path) -> None:
    session = FakeSession()

    async def body(d: Driven) -> None:
        await d.press("f2")
        await d.until(lambda: bool(d.app.screen.query("#system")))
        d.app.screen.query_one("#system", TextArea).load_text("Speak like a pirate.")
        await d.pilot.pause()
        await d.press("ctrl+s")
        await d.until(lambda: d.app.screen is d.chat)
        await d.ask("x")
        assert session.asked[0][0][0] == {"role": "system", "content": "Speak like a pirate."}

    drive(body, tmp_path, session=session)


def test_the_sidebar_shows_and_chooses(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("the first one")
        first = d.chat.conversation
        await d.press("ctrl+n")
        await d.ask("the second one")
        await d.press("ctrl+b")
        await d.until(lambda: "> the second one" in d.text and "the first one" in d.text)
        await d.press("down", "enter")
        await d.until(
            lambda: d.chat.conversation == d.chat.renew() and d.contents[0] == "the first one"
        )
        assert d.chat.conversation.id == first.id  # type: ignore[union-attr]
        assert d.app.focused is d.chat.composer.editor
        await d.press("ctrl+b", "d")
        await d.until(lambda: not d.chat.transcript.views)
        await d.press("escape")
        await d.until(lambda: d.app.focused is d.chat.composer.editor)

    drive(body, tmp_path)


def test_a_wide_screen_has_the_sidebar_from_the_beginning(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.until(lambda: "no conversations yet" in d.text)
        await d.ask("a question")
        await d.until(lambda: "> a question" in d.text)
        await d.press("ctrl+b", "ctrl+b")
        await d.until(lambda: "> a question" not in d.text)

    drive(body, tmp_path, size=(120, 40))


def test_search_jumps_to_the_message(tmp_path: Path) -> None:
    session = FakeSession([["about whales"], ["about snails"]])

    async def body(d: Driven) -> None:
        await d.ask("one")
        first = d.chat.conversation
        await d.press("ctrl+n")
        await d.ask("two")
        await d.press("ctrl+f", *"whales")
        await d.until(lambda: "about whales" in d.text)
        await d.press("enter")
        await d.until(lambda: d.chat.conversation.id == first.id)  # type: ignore[union-attr]
        await d.until(
            lambda: getattr(d.app.focused, "message", None) == d.path[1] or "whales" in d.text
        )

    drive(body, tmp_path, session=session)


def test_the_palette_has_every_action(tmp_path: Path) -> None:
    from localllm.tui.keys import KEYS

    async def body(d: Driven) -> None:
        commands = {each.title for each in d.app.get_system_commands(d.app.screen)}
        wanted = {row.label for row in KEYS if row.where == "everywhere" and row.action}
        assert wanted <= commands
        await d.press("ctrl+p")
        await d.until(lambda: isinstance(d.app.screen, CommandPalette))
        await d.press(*"figures")
        await d.until(lambda: "speed, memory and context" in d.text)
        await d.press("down", "enter")
        await d.until(lambda: isinstance(d.app.screen, FiguresScreen))

    drive(body, tmp_path)


def test_the_palette_reaches_other_places(tmp_path: Path) -> None:
    session = FakeSession([["```python\nx = 1\n```"]])

    async def run(d: Driven, typed: str, title: str) -> None:
        await d.press("ctrl+p")
        await d.until(lambda: isinstance(d.app.screen, CommandPalette))
        d.app.screen.query_one(Input).value = typed
        await d.until(lambda: title in d.text)
        await d.press("down", "enter")
        await d.until(lambda: d.app.screen is d.chat)

    async def body(d: Driven) -> None:
        titles = {each.title for each in d.app.get_system_commands(d.app.screen)}
        assert {"Code: Copy code", "Message: Copy", "Chats: Rename"} <= titles
        await d.ask("a question")
        await run(d, "chats: pin", "Chats: Pin")
        await d.until(lambda: d.store.listed()[0].pinned)
        await d.chat.run_at("code", "wanted('copy')")
        await d.until(lambda: d.app.clipboard == "x = 1\n")
        await d.chat.run_at("message", "wanted('copy')")
        await d.until(lambda: d.app.clipboard == d.contents[1])
        await d.press("f1")
        await d.until(lambda: isinstance(d.app.screen, HelpScreen))
        shown = str(d.app.screen.query_one("#help", Static).render())
        assert "In the list of conversations" in shown and "Undo delete" in shown

    drive(body, tmp_path, session=session)


def test_a_long_history_is_mounted_by_and_by(tmp_path: Path) -> None:
    store = Conversations(tmp_path / "conversations.db")
    made = store.create(title="long")
    parent = None
    for n in range(500):
        role = "assistant" if n % 2 else "user"
        parent = store.add(made.id, parent, role, f"message number {n}").id
    assert store.flush()
    store.close()

    async def body(d: Driven) -> None:
        before = d.store.n_queries
        await d.chat.show_conversation(made.id)
        assert d.store.n_queries - before <= 8
        assert d.chat.transcript.n_mounted == FIRST
        await d.until(lambda: "message number 499" in d.text)
        assert "488 earlier messages" in str(d.chat.transcript.query_one("#earlier").render())
        while d.chat.transcript.n_mounted <= 40:  # beyond what was read at first
            n = d.chat.transcript.n_mounted
            await d.press("ctrl+home")
            await d.until(lambda n=n: d.chat.transcript.n_mounted > n)  # type: ignore[misc]
        numbers = [int(v.message.content.split()[-1]) for v in d.chat.transcript.views]
        assert numbers == list(range(500 - len(numbers), 500))
        await d.press("ctrl+end")
        await d.until(lambda: "message number 499" in d.text)

    drive(body, tmp_path)


def test_the_scroll_follows_unless_the_user_went_up(tmp_path: Path) -> None:
    import threading

    gates = [threading.Event(), threading.Event()]
    lines = "\n\n".join(f"line {n}" for n in range(40))

    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: "line 39" in d.text)
        await d.press("pageup")
        await d.until(lambda: "line 39" not in d.text)
        gates[0].set()
        await d.until(lambda: d.path[1].content.endswith("middle"))
        await d.pilot.pause(0.2)
        assert "middle" not in d.text
        await d.press("ctrl+end")
        await d.until(lambda: "middle" in d.text)
        gates[1].set()
        await d.until(lambda: d.idle and "the end" in d.text)

    script = [[lines, gates[0], "\n\nmiddle", gates[1], "\n\nmore" * 30 + "\n\nthe end"]]
    drive(body, tmp_path, session=FakeSession(script))


def test_lines_that_change_lay_nothing_out(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question")
        n = 0
        layout = d.chat._refresh_layout

        def counted(*args: object, **more: object) -> None:
            nonlocal n
            n += 1
            layout(*args, **more)  # type: ignore[arg-type]

        d.chat._refresh_layout = counted  # type: ignore[method-assign]
        for title in ("one", "two"):
            d.app.store.change(d.chat.renew().id, title=title)
            d.chat.renew()
            d.chat.show_lines()
            d.chat._watch()
            await d.until(lambda title=title: d.text.startswith(f" {title} "))  # type: ignore[misc]
        assert n == 0
        d.chat.refresh(layout=True)
        await d.until(lambda: n)

    drive(body, tmp_path)


def test_sixty_columns(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question with several words that do not fit into one line of it")
        assert all(len(line) <= 60 for line in d.text.splitlines())
        assert "An answer." in d.text and "Help" in d.text
        await d.press("ctrl+b")
        await d.until(lambda: "Today" in d.text)
        await d.pilot.resize_terminal(120, 40)
        await d.until(lambda: len(d.text.splitlines()[0]) == 120)

    drive(body, tmp_path, size=(60, 20))


def test_no_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def body(d: Driven) -> None:
        await d.ask("x")
        svg = d.app.export_screenshot()
        colours = set(re.findall(r"fill: (#[0-9a-f]{6})", svg)) - {"#c5c8c6"}  # of the frame
        grey = {c for c in colours if c[1:3] == c[3:5] == c[5:7]}
        assert colours and colours == grey

    drive(body, tmp_path)


def test_trouble_with_the_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("one")
        trouble = FileError("the disk is full")
        d.chat.app.store._writer.trouble = trouble  # type: ignore[misc]
        d.chat.post_message(ChatApp.StoreChanged())
        await d.until(lambda: "not saved yet: the disk is full" in d.text)
        await d.ask("two")
        assert d.contents[2] == "two"

    drive(body, tmp_path)


def test_without_a_model_the_list_of_models_is_shown(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.until(lambda: isinstance(d.app.screen, ModelsScreen))
        await d.press("escape")
        await d.type("kept")
        await d.press("enter")
        await d.until(lambda: isinstance(d.app.screen, ModelsScreen))
        await d.press("escape")
        assert "1 queued" in d.text

    drive(body, tmp_path, opener=FakeOpener({}, default=None), loaded=False)


def test_nasty_names_are_shown_inert(tmp_path: Path) -> None:
    nasty = "m\x1b]0;x\x07[/red][b\u202e"
    opener = FakeOpener({nasty: FakeSession()}, default=nasty)

    async def body(d: Driven) -> None:
        await d.ask("\x1b[31m[link=x]q")
        await d.press("ctrl+b")
        await d.pilot.pause(0.1)
        assert not set(d.text) & set("\x07\x1b\u202e")
        assert "[/red][b" in d.text

    drive(body, tmp_path, opener=opener)


def test_fast_start_imports_little() -> None:
    """What the first paint does not need is not imported before it."""
    import subprocess
    import sys

    code = (
        "import localllm.cli.main, localllm.cli.chat, localllm.cli.chat_opening, "
        "localllm.tui.app, localllm.tui.screens.chat, sys; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(done.stdout.split())
    heavy = {
        *("pygments.lexers", "markdown_it", "pypdf", "numpy", "httpx2", "prompt_toolkit"),
        *("localllm.engine.open", "localllm.tui.screens.models", "localllm.tui.screens.search"),
        *("localllm.session", "localllm.store.catalog", "localllm.store.index", "psutil"),
    }
    assert not heavy & names


def test_the_first_screen_has_few_widgets(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        assert len(d.chat.query("*")) <= 20

    drive(body, tmp_path, loaded=False)


def test_asyncio_is_not_blocked_by_a_slow_load(tmp_path: Path) -> None:
    import threading

    gate = threading.Event()
    opener = FakeOpener(loads={"fake:135m": [0.1, gate, 1.0]})

    async def body(d: Driven) -> None:
        await d.until(lambda: "loading fake:135m  10%" in d.text)
        await d.press(*"typed meanwhile")
        assert d.chat.composer.text == "typed meanwhile"
        gate.set()
        await d.until(lambda: d.app.session is not None)
        assert d.chat.composer.text == "typed meanwhile"
        assert not isinstance(d.app.screen.query("Input"), Input)
        await asyncio.sleep(0)

    drive(body, tmp_path, opener=opener, loaded=False)


def test_compare_and_go_on_with_one(tmp_path: Path) -> None:
    one, two = FakeSession([["from one"]]), FakeSession([["from two"]])
    opener = FakeOpener({"one": one, "two": two}, default="one")

    async def body(d: Driven) -> None:
        await d.ask("before")
        await d.type("which?")
        await d.press("f4")
        await d.until(lambda: isinstance(d.app.screen, CompareScreen))
        await d.until(lambda: "which?" in d.text)
        screen = d.app.screen
        assert isinstance(screen, CompareScreen)
        screen.views[1].offer(["one", "two"], "two")
        await d.press("enter")
        await d.until(lambda: "from two" in d.text)
        await d.until(lambda: screen.comparison is not None and screen.comparison.is_over)
        await d.press("f3")
        await d.until(lambda: d.app.screen is d.chat and d.app.model == "two")
        assert d.contents == ["before", "from one", "which?", "from two"]
        others = d.store.every(d.path[0].conversation)
        assert [m.content for m in others if m.parent == d.path[2].id] == ["from one", "from two"]
        assert d.chat.composer.text == ""

    drive(body, tmp_path, opener=opener)
