"""All keys and commands, from their tables."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localllm import slash
from localllm.tui.keys import KEYS, WHERE


def help_text() -> Content:
    """The keys by place, then the commands."""
    width = max(len(row.shown) for row in KEYS) + 2
    parts: list[Content | str | tuple[str, str]] = []
    for where, title in WHERE.items():
        parts.append((f"{title}\n", "bold"))
        for row in KEYS:
            if row.where == where:
                more = f": {row.help}" if row.help else ""
                parts.append(f"  {row.shown:{width}}{row.label}{more}\n")
        parts.append("\n")
    parts.append(("Commands\n", "bold"))
    for name, row_ in slash.known_in(slash.CHAT).items():
        parts.append(f"  {f'/{name} {row_.usage}'.rstrip():{width}}{row_.help}\n")
    parts.append("\n@file sends a file along: text, code, the text of a PDF, a picture.")
    return Content.assemble(*parts)


class HelpPage(ModalScreen[None]):
    """A page that is read. Closed by Esc, or any key that opened it."""

    DEFAULT_CSS = """
    HelpPage { align: center middle; }
    HelpPage VerticalScroll {
        width: 80%; max-width: 90; height: auto; max-height: 90%; padding: 1 2;
        background: $surface; border: round $accent;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,question_mark,q", "dismiss", "Close"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
    ]

    def __init__(self, page: Content) -> None:
        super().__init__()
        self._page = page

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._page, id="help")

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


class HelpScreen(HelpPage):
    """That of the chat."""

    def __init__(self) -> None:
        super().__init__(help_text())
