"""All keys and commands, from their tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localllm import slash
from localllm.tui.keys import KEYS, WHERE

Section = tuple[str, Sequence[tuple[str, str]]]  # a title, and what stands to the left and right
_LEFT = 22  # cells of the left column
_LEAST = 20  # of the right one
_SCROLLBAR = 1  # which comes with the text


def help_sections() -> list[Section]:
    """The keys by place, then the commands."""
    sections: list[Section] = []
    for where, title in WHERE.items():
        rows = [row for row in KEYS if row.where == where]
        sections.append(
            (title, [(row.shown, f"{row.label}{row.help and ': '}{row.help}") for row in rows])
        )
    commands = slash.known_in(slash.CHAT).items()
    rows_ = [(f"/{name} {row.usage}".rstrip(), row.help) for name, row in commands]
    rows_.append(("@file", "sends a file along: text, code, the text of a PDF, a picture"))
    return [*sections, ("Commands", rows_)]


def page_text(sections: Sequence[Section], width: int) -> Content:
    """Two columns: what stands to the right is broken there. A long left text has a line alone."""
    parts: list[str | tuple[str, str]] = []
    for title, rows in sections:
        parts.append((f"{title}\n", "bold"))
        for left, right in rows:
            lines = textwrap.wrap(right, max(_LEAST, width - _LEFT - 2)) or [""]
            if len(left) >= _LEFT:
                parts.append(f"  {left}\n")
                left = ""
            for line in lines:
                parts.append(f"  {left:{_LEFT}}{line}".rstrip() + "\n")
                left = ""
        parts.append("\n")
    return Content.assemble(*parts).rstrip()


class Page(ModalScreen[None]):
    """A text that is read. Closed by Esc, or any key that opened it."""

    DEFAULT_CSS = """
    Page { align: center middle; }
    Page VerticalScroll {
        width: 90%; max-width: 90; height: auto; max-height: 90%; padding: 1 2;
        background: $surface; border: round $accent; scrollbar-size-vertical: 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,question_mark,q", "dismiss", "Close"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
    ]

    def __init__(self, text: Content) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, id="help")

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


class HelpPage(Page):
    """Keys and what they do, in two columns."""

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__(Content())
        self.sections = sections

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        width = self.query_one(VerticalScroll).scrollable_content_region.width
        self.query_one("#help", Static).update(page_text(self.sections, width - _SCROLLBAR))


class HelpScreen(HelpPage):
    """That of the chat."""

    def __init__(self) -> None:
        super().__init__(help_sections())
