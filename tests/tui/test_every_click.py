"""All that can be clicked is clicked, on every screen: a table of what must be seen then. What can
be clicked and stands in no row of it fails a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Checkbox, DataTable, Input, Select
from tui.driving import Driven
from tui.steps import C, Row, focused, in_chat, on, press, shows, take_steps
from tui.test_every_key import (
    at,
    chips,
    editor,
    empty,
    entering,
    field,
    kv,
    n_branches,
    pulls,
    some,
    three_chips,
    titles,
    to_top_k,
    type_command,
)

from localllm.tui.screens.compare import CompareScreen
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.figures import FiguresScreen
from localllm.tui.screens.models import ModelsScreen
from localllm.tui.screens.parameters import ParametersScreen
from localllm.tui.screens.save import SaveScreen
from localllm.tui.screens.search import SearchScreen
from localllm.tui.screens.transfer import ExportScreen

Seen = Callable[[Driven, Any], object]


def there(screen: type[Any]) -> Callable[[Driven], Any]:
    return lambda d: d.until(lambda: isinstance(d.app.screen, screen))


def states(*wanted: str) -> Seen:
    return lambda d, _: [pull.state for pull in pulls(d)] == list(wanted)


def open_list(selector: str) -> Seen:
    return lambda d, _: any(each.expanded for each in d.app.screen.query(selector).results(Select))


def path(ending: str) -> Seen:
    return lambda d, _: d.app.screen.query_one("#path", Input).value.endswith(ending)


def cursor(d: Driven) -> int:
    return d.app.screen.query_one(DataTable).cursor_row


CHAT: list[Row] = [
    lambda d: d.ask("a question"),
    C("Reasoning CollapsibleTitle", shows("thought of it")),
    C("MessageView wanted('regenerate')", lambda d, n: d.idle and n_branches(d) == n + 1,
      n_branches),
    C("MessageView wanted('older')", at(0)),
    C("MessageView wanted('newer')", at(1)),
    C("CodeBlock wanted('copy')", lambda d, _: d.app.clipboard == "x = 1\n"),
    C("MessageView wanted('copy')", lambda d, _: d.app.clipboard in d.contents),
    C("CodeBlock wanted('save')", on(SaveScreen)),
    press("escape"),
    C("MessageView wanted('edit')", lambda d, _: d.chat.editing is not None),
    press("escape"),
    C("LiveBar LiveBar", on(FiguresScreen)),
    C("FittedTable FittedTable", focused(DataTable)),
    press("escape"),
    three_chips,
    C("Chip Chip", lambda d, n: chips(d) == n - 1, chips),
    type_command,
    C("Composer offers", lambda d, _: editor(d) == "/system ", at=(3, 0)),
    empty,
]  # fmt: skip
LIST: list[Row] = [
    some,
    C("ActionLabel Pin", lambda d, _: d.store.listed()[0].pinned),
    C("ActionLabel Rename", entering),
    press("escape"),
    C("ActionLabel Tag", entering),
    press("escape"),
    C("ActionLabel Delete", lambda d, _: len(titles(d)) == 2),
    C("ActionLabel Undo", lambda d, _: len(titles(d)) == 3),
    C("ActionLabel Export", on(ExportScreen)),
    C("Kind json", path(".json")),
    C("Kind md", path(".md")),
    C("Tick all", lambda d, _: d.app.screen.query_one("#all", Checkbox).value),
    press("escape"),
    lambda d: d.until(lambda: in_chat(d)),
    C("ConversationList conversations", lambda d, _: d.contents == ["x"], at=(4, 1)),
    press("ctrl+f"),
    there(SearchScreen),
    press(*"title"),
    lambda d: d.until(lambda: "places" in d.text),
    C("SearchScreen OptionList", in_chat, at=(4, 0)),
]
MODELS: list[Row] = [
    press("ctrl+o"),
    there(ModelsScreen),
    lambda d: d.until(lambda: "best fit" in d.text),
    C("LoadOptionsBar kv", lambda d, _: kv(d) == "q8_0"),
    C("ModelTable ModelTable", lambda d, _: cursor(d) == 2, at=(5, 3)),
    C("ModelTable ModelTable", on(ConfirmScreen), at=(5, 3)),
    C("ConfirmScreen no", on(ModelsScreen)),
    press("p"),
    there(ConfirmScreen),
    C("ConfirmScreen yes", states("running")),
    C("PullRow Stop", states("stopped")),
    C("PullRow Again", states("running")),
    C("PullRow Stop", states("stopped")),
    C("PullRow Dismiss", states()),
]
SETTINGS: list[Row] = [
    press("f2"),
    there(ParametersScreen),
    to_top_k,
    lambda d: top(d),
    C("ParametersScreen own", shows("none come with the model")),
    C("ParametersScreen save", shows("Type a name")),
    C("ParametersScreen delete", shows("Choose the preset")),
    C("ParametersScreen think", open_list("#think")),
    press("escape"),
    C("ParametersScreen presets", open_list("#presets")),
    press("escape"),
    C("ParameterField reset", lambda d, _: not d.app.screen.wishes().params),  # type: ignore[attr-defined]
]


async def top(d: Driven) -> None:
    """The first parameter is set, and in sight."""
    await d.press("f6")
    first = field(d, "temperature").query_one(Input)
    first.focus()
    await d.press("1")
    await d.until(lambda: field(d, "temperature").value == (True, 1.0))


COMPARE: list[Row] = [
    lambda d: d.type("which?"),
    press("f4"),
    there(CompareScreen),
    lambda d: d.until(lambda: d.app.screen.views[1].name_chosen),  # type: ignore[attr-defined]
    C("SideView Select", open_list("Select")),
    press("escape"),
    press("f5"),
    lambda d: d.until(lambda: "F2 or F3" in d.text),
    C("SideView take", lambda d, _: in_chat(d) and len(d.path) == 2),
]
SCENES = {
    "chat": CHAT, "list": LIST, "models": MODELS, "settings": SETTINGS, "compare": COMPARE,
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    could = take_steps(tmp_path, SCENES[scene], "short")
    rows = [row for each in SCENES.values() for row in each]
    assert could <= {row.name for row in rows if isinstance(row, C)}
