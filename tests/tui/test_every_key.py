"""Every key of the chat is pressed, on every screen: a table of what must be seen then. A binding
that stands in no row of it fails a test."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding
from textual.command import CommandPalette
from textual.widgets import Checkbox, DataTable, Input, OptionList
from tui.driving import Driven
from tui.steps import K, Row, focus, focused, in_chat, on, other, press, shows, take_steps, typing
from tui.test_models_screen import FakeLibrary

import localllm.tui
from localllm.tui.conversations.kinds import Attachment
from localllm.tui.keys import KEYS
from localllm.tui.pulls import Pull
from localllm.tui.screens.compare import CompareScreen
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.figures import FiguresScreen
from localllm.tui.screens.help import HelpScreen
from localllm.tui.screens.models import ModelsScreen
from localllm.tui.screens.own_keys import KeysScreen
from localllm.tui.screens.parameters import ParametersScreen
from localllm.tui.screens.save import SaveScreen
from localllm.tui.screens.search import SearchScreen
from localllm.tui.screens.transfer import ExportScreen, ImportScreen
from localllm.tui.widgets.answer import CodeBlock
from localllm.tui.widgets.composer import Chip
from localllm.tui.widgets.message import MessageView
from localllm.tui.widgets.parameter_field import ParameterField
from localllm.tui.widgets.sidebar import ConversationList


def scroll_y(d: Driven) -> float:
    return float(d.chat.transcript.scroll_y)


def n_branches(d: Driven) -> int:
    return len(d.path[-1].siblings) if d.path else 0


async def ask(d: Driven) -> None:
    await d.ask("a question")
    await d.until(lambda: d.chat.transcript.max_scroll_y > 0)


async def select(d: Driven) -> None:
    d.chat.composer.editor.load_text("copied")
    d.chat.composer.editor.select_all()


async def empty(d: Driven) -> None:
    d.chat.composer.show("")
    d.chat.composer.editor.focus()
    await d.pilot.pause()


CHAT: list[Row] = [
    ask,
    K("ChatScreen", "f1", on(HelpScreen)),
    K("Page", "f1", in_chat),
    K("ChatScreen", "ctrl+up", focused(MessageView)),
    K("ChatScreen", "question_mark", on(HelpScreen)),
    K("Page", "question_mark", in_chat),
    press("f1"),
    K("Page", "q", in_chat),
    press("f1"),
    K("Page", "down", lambda d, y: page_y(d) > y, lambda d: page_y(d)),
    K("Page", "up", lambda d, y: page_y(d) < y, lambda d: page_y(d)),
    K("Page", "j", lambda d, y: page_y(d) > y, lambda d: page_y(d)),
    K("Page", "k", lambda d, y: page_y(d) < y, lambda d: page_y(d)),
    K("Page", "escape", in_chat),
    K("ChatScreen", "escape", typing),
    K("ChatScreen", "pageup", lambda d, y: scroll_y(d) < y, scroll_y),
    K("ChatScreen", "pagedown", lambda d, y: scroll_y(d) > y, scroll_y),
    K("ChatScreen", "ctrl+home", lambda d, _: scroll_y(d) == 0),
    K("ChatScreen", "ctrl+end", lambda d, _: scroll_y(d) == d.chat.transcript.max_scroll_y),
    select,
    K("ChatScreen", "ctrl+c", lambda d, _: d.app.clipboard == "copied"),
    empty,
    K("ChatScreen", "f9", lambda d, theme: d.app.theme != theme, lambda d: d.app.theme),
    K("App", "ctrl+p", on(CommandPalette)),
    press("escape"),
    K("ChatScreen", "f5", lambda d, n: d.idle and n_branches(d) == n + 1, n_branches),
    K("ChatScreen", "ctrl+r", lambda d, n: d.idle and n_branches(d) == n + 1, n_branches),
    K("ChatScreen", "f6", lambda d, n: d.idle and len(d.contents[-1]) > n,
      lambda d: len(d.contents[-1])),
    K("ChatScreen", "f8", lambda d, _: d.chat.editing is not None),
    press("escape"),
    K("ChatScreen", "f7", lambda d, _: not d.path and d.chat.composer.text == "a question"),
    empty,
    K("ChatScreen", "ctrl+n", lambda d, id: d.chat.renew().id != id, lambda d: d.chat.renew().id),
    K("ChatScreen", "ctrl+b", focused(ConversationList)),
    K("ChatScreen", "ctrl+q", lambda d, _: d.app._exit),
]  # fmt: skip


def page_y(d: Driven) -> float:
    return float(d.app.screen.query_one("VerticalScroll").scroll_y)


def editor(d: Driven) -> str:
    return d.chat.composer.editor.text


def chips(d: Driven) -> int:
    return len(d.chat.composer.attached)


async def three_chips(d: Driven) -> None:
    for n in range(4):
        d.chat.composer.attach([Attachment(f"{n}.txt", "text", "x")])
    await d.until(lambda: len(d.app.screen.query(Chip)) == 4)


async def to_chip(d: Driven) -> None:
    d.app.screen.query(Chip).first().focus()
    await d.until(lambda: isinstance(d.app.focused, Chip))


async def type_command(d: Driven) -> None:
    await empty(d)
    await d.type("/syst")
    await d.until(lambda: d.chat.composer.offers)


EDITOR: list[Row] = [
    lambda d: d.type("one"),
    K("Editor", "shift+enter", lambda d, _: editor(d) == "one\n"),
    K("Editor", "ctrl+j", lambda d, _: editor(d) == "one\n\n"),
    K("Editor", "alt+enter", lambda d, _: editor(d) == "one\n\n\n"),
    K("Editor", "enter", lambda d, _: d.idle and len(d.path) == 2),
    K("Editor", "up", lambda d, _: editor(d).startswith("one")),
    K("Editor", "down", lambda d, _: editor(d) == ""),
    type_command,
    K("Editor", "tab", lambda d, _: editor(d) == "/system "),
    empty,
    three_chips,
    K("Editor", "backspace", lambda d, n: chips(d) == n - 1, chips),
    to_chip,
    K("Chip", "delete", lambda d, n: chips(d) == n - 1, chips),
    to_chip,
    K("Chip", "backspace", lambda d, n: chips(d) == n - 1, chips),
    to_chip,
    K("Chip", "enter", lambda d, n: chips(d) == n - 1, chips),
]


def at(place: int) -> Callable[[Driven, Any], object]:
    """The answer that is shown is that branch of two."""
    return lambda d, _: d.path[-1].place == place and f"‹ {place + 1}/2 ›" in d.text


async def to_last(d: Driven) -> None:
    d.chat.composer.editor.focus()
    await d.press("ctrl+up")
    await d.until(lambda: isinstance(d.app.focused, MessageView))


MESSAGE: list[Row] = [
    lambda d: d.ask("a question"),
    to_last,
    K("MessageView", "up", other, focus),
    K("MessageView", "down", other, focus),
    K("MessageView", "k", other, focus),
    K("MessageView", "j", other, focus),
    K("MessageView", "c", lambda d, _: d.app.clipboard == d.contents[-1]),
    K("MessageView", "t", shows("thought of it")),
    K("MessageView", "r", lambda d, n: d.idle and n_branches(d) == n + 1, n_branches),
    to_last,
    K("MessageView", "left", at(0)),
    K("MessageView", "right", at(1)),
    K("MessageView", "left_square_bracket", at(0)),
    K("MessageView", "right_square_bracket", at(1)),
    K("MessageView", "g", lambda d, n: d.idle and len(d.contents[-1]) > n,
      lambda d: len(d.contents[-1])),
    to_last,
    K("MessageView", "e", lambda d, _: d.chat.editing is not None),
    press("escape"),
    to_last,
    press("up"),
    K("MessageView", "u", lambda d, _: not d.path),
]  # fmt: skip
CODES: list[Row] = [
    lambda d: d.ask("a question"),
    press("ctrl+up", "tab", "tab"),
    K("CodeBlock", "c", lambda d, _: d.app.clipboard == "x = 1\n"),
    lambda d: forget_clipboard(d),
    K("CodeBlock", "y", lambda d, _: d.app.clipboard == "x = 1\n"),
    K("CodeBlock", "s", on(SaveScreen)),
    K("PathDialog", "escape", in_chat),
]


async def forget_clipboard(d: Driven) -> None:
    d.app.copy_to_clipboard("")
    assert isinstance(d.app.focused, CodeBlock)


def titles(d: Driven) -> list[str]:
    return [each.title for each in d.store.listed()]


async def some(d: Driven) -> None:
    for n in range(3):
        d.store.add(d.store.create(title=f"title {n}").id, None, "user", "x")
    await d.press("ctrl+b")
    await d.until(lambda: "title 0" in d.text and isinstance(d.app.focused, ConversationList))


def line(d: Driven) -> int:
    sidebar = d.chat.sidebar
    return (sidebar.list.highlighted or 0) if sidebar else 0


def entering(d: Driven, _: Any) -> object:
    return isinstance(d.app.focused, Input) and d.app.focused.id == "entry"


LIST: list[Row] = [
    some,
    K("ConversationList", "j", lambda d, n: line(d) == n + 1, line),
    K("ConversationList", "k", lambda d, n: line(d) == n - 1, line),
    K("ConversationList", "p", lambda d, _: d.store.listed()[0].pinned),
    K("ConversationList", "r", entering),
    press("escape"),
    K("ConversationList", "t", entering),
    press("escape"),
    K("ConversationList", "d", lambda d, _: len(titles(d)) == 2),
    K("ConversationList", "u", lambda d, _: len(titles(d)) == 3),
    K("ConversationList", "delete", lambda d, _: len(titles(d)) == 2),
    K("ConversationList", "ctrl+z", lambda d, _: len(titles(d)) == 3),
    K("ConversationList", "x", on(ExportScreen)),
    K("PathDialog", "up", focused(Checkbox)),
    K("PathDialog", "down", focused(Input)),
    press("escape"),
    K("ConversationList", "slash", focused(Input)),
    press("z"),
    K("Sidebar", "escape", focused(ConversationList)),
    K("ConversationList", "escape", typing),
]


async def lines(d: Driven) -> None:
    for n in range(30):
        d.store.add(d.store.create().id, None, "user", f"line {n}")


SCREENS: list[Row] = [
    ask,
    lines,
    K("ChatScreen", "f3", on(FiguresScreen)),
    K("FiguresScreen", "tab", other, focus),
    K("FiguresScreen", "escape", in_chat),
    K("ChatScreen", "ctrl+s", on(ExportScreen)),
    press("escape"),
    K("ChatScreen", "f10", on(ImportScreen)),
    press("escape"),
    K("ChatScreen", "ctrl+f", on(SearchScreen)),
    press(*"line"),
    lambda d: d.until(lambda: hits(d) > 3),
    K("SearchScreen", "down", lambda d, n: hit(d) == n + 1, lambda d: hit(d)),
    K("SearchScreen", "up", lambda d, n: hit(d) == n - 1, lambda d: hit(d)),
    K("SearchScreen", "pagedown", lambda d, n: hit(d) > n, lambda d: hit(d)),
    K("SearchScreen", "pageup", lambda d, n: hit(d) < n, lambda d: hit(d)),
    K("SearchScreen", "escape", in_chat),
    lambda d: d.type("which?"),
    K("ChatScreen", "f4", on(CompareScreen)),
    lambda d: d.until(lambda: d.app.screen.views[1].name_chosen),  # type: ignore[attr-defined]
    K("CompareScreen", "f5", shows("F2 or F3")),
    K("CompareScreen", "f2", lambda d, _: in_chat(d) and d.path[-1].model == "fake:135m"),
    lambda d: d.type("and?"),
    press("f4"),
    lambda d: d.until(lambda: d.app.screen.views[1].name_chosen),  # type: ignore[attr-defined]
    press("enter"),
    lambda d: d.until(lambda: "F2 or F3" in d.text),
    K("CompareScreen", "f3", lambda d, _: in_chat(d) and d.path[-1].model == "other:1b"),
    press("f4"),
    K("CompareScreen", "escape", in_chat),
]


def hits(d: Driven) -> int:
    return len(d.app.screen.query_one(OptionList).options)


def hit(d: Driven) -> int:
    return d.app.screen.query_one(OptionList).highlighted or 0


def kv(d: Driven) -> str:
    from localllm.tui.widgets.load_options import LoadOptionsBar

    return d.app.screen.query_one(LoadOptionsBar).options.kv_type


def library(d: Driven) -> FakeLibrary:
    found = d.app.library
    assert isinstance(found, FakeLibrary)
    return found


def pulls(d: Driven) -> list[Pull]:
    return d.app.pulls.all() if d.app.pulls else []


async def all_rows(d: Driven) -> None:
    await d.until(lambda: d.app.screen.query_one(DataTable).row_count == 5 and "best fit" in d.text)
    await d.press("home", "ctrl+home")


MODELS: list[Row] = [
    K("ChatScreen", "ctrl+o", on(ModelsScreen)),
    all_rows,
    K("ModelsScreen", "i", lambda d, _: not d.app.screen.query_one("#details").display),
    K("ModelsScreen", "k", lambda d, _: kv(d) == "q8_0"),
    K("ModelsScreen", "c", lambda d, _: d.app.focused.id == "context"),
    press("escape"),
    K("ModelsScreen", "slash", lambda d, _: d.app.focused.id == "filter"),
    press("escape"),
    K("ModelsScreen", "ctrl+f", lambda d, _: d.app.focused.id == "filter"),
    press("escape"),
    K("KeyedScreen", "f1", on(KeysScreen)),
    press("escape", "down"),
    K("ModelsScreen", "d", on(ConfirmScreen)),
    K("ConfirmScreen", "left", other, focus),
    K("ConfirmScreen", "right", other, focus),
    K("ConfirmScreen", "n", on(ModelsScreen)),
    K("ModelsScreen", "delete", on(ConfirmScreen)),
    K("ConfirmScreen", "escape", lambda d, _: on(ModelsScreen)(d, _) and not library(d).deleted),
    press("down"),
    K("ModelsScreen", "p", on(ConfirmScreen)),
    K("ConfirmScreen", "y", lambda d, _: [pull.state for pull in pulls(d)] == ["running"]),
    K("ModelsScreen", "x", lambda d, _: [pull.state for pull in pulls(d)] == ["stopped"]),
    lambda d: rows_anew(d),
    K("ModelsScreen", "r", lambda d, _: d.app.screen.query_one(DataTable).row_count == 1),
    lambda d: rows_anew(d, 3),
    K("ModelsScreen", "f5", lambda d, _: d.app.screen.query_one(DataTable).row_count == 3),
    K("ModelsScreen", "escape", in_chat),
    press("ctrl+o"),
    lambda d: d.until(lambda: "old:1b" in d.text),
    press("home", "ctrl+home", "down"),
    K("ModelTable", "enter", lambda d, _: in_chat(d) and d.app.model == "old:1b"),
]


async def rows_anew(d: Driven, n: int = 1) -> None:
    library(d).models = FakeLibrary().models[:n]


def field(d: Driven, name: str) -> ParameterField:
    return next(each for each in d.app.screen.query(ParameterField) if each.row.name == name)


async def to_top_k(d: Driven) -> None:
    field(d, "top_k").query_one(Input).focus()
    await d.press("7")
    await d.until(lambda: field(d, "top_k").value == (True, 7))


async def name_it(d: Driven) -> None:
    d.app.screen.query_one("#name", Input).value = "calm"
    await d.pilot.pause()


SETTINGS: list[Row] = [
    K("ChatScreen", "f2", on(ParametersScreen)),
    to_top_k,
    K("ParameterField", "down", other, focus),
    K("ParameterField", "up", other, focus),
    K("ParametersScreen", "f5", lambda d, _: field(d, "top_k").value == (False, None)),
    to_top_k,
    name_it,
    K("ParametersScreen", "f7", shows("calm is saved")),
    K("ParametersScreen", "f6", lambda d, _: field(d, "top_k").value == (False, None)),
    K("ParametersScreen", "f8", on(ConfirmScreen)),
    press("y"),
    lambda d: d.until(lambda: "is deleted" in d.text),
    to_top_k,
    K("ParametersScreen", "escape", lambda d, _: in_chat(d) and not d.chat.renew().params),
    press("f2"),
    to_top_k,
    K("ParametersScreen", "ctrl+s", lambda d, _: in_chat(d) and d.chat.renew().params),
]
SCENES = {
    "chat": CHAT, "editor": EDITOR, "message": MESSAGE, "code": CODES, "list": LIST,
    "screens": SCREENS, "models": MODELS, "settings": SETTINGS,
}  # fmt: skip


def bound() -> Iterator[tuple[str, str]]:
    """(class, key) of every binding in the package, and of the keys that are a widget's own."""
    for module in pkgutil.walk_packages(localllm.tui.__path__, "localllm.tui."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and value.__module__ == module.name:
                for binding in vars(value).get("BINDINGS", ()):
                    assert isinstance(binding, Binding)
                    yield from ((name, key) for key in binding.key.split(","))
    own = {"everywhere": "App", "editor": "Editor"}
    for row in KEYS:
        if not row.action:
            yield from ((own[row.where], key) for key in row.keys.split(","))


def test_no_key_is_left_out() -> None:
    rows = [row for scene in SCENES.values() for row in scene]
    driven = {(row.owner, row.key) for row in rows if isinstance(row, K)}
    assert driven == set(bound())


@pytest.mark.parametrize("scene", SCENES)
def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    take_steps(tmp_path, SCENES[scene])
