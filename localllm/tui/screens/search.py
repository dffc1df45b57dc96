"""Full-text search in all conversations."""

from __future__ import annotations

import datetime
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localllm.plain_text import escape_line
from localllm.tui.conversations.dates import day_text
from localllm.tui.conversations.kinds import Hit
from localllm.tui.conversations.store import Conversations
from localllm.tui.widgets.field import Field

LIMIT = 100
PAUSE_S = 0.1  # after the last key
_ROLES = {"user": "you", "assistant": "answer", "system": "system", "": "title"}


class SearchScreen(ModalScreen["Hit | None"]):
    """The result is where to go: `Conversations.open_at(hit.message)`, or the conversation if only
    its title was meant. The text field keeps the focus; up and down walk through the list."""

    DEFAULT_CSS = """
    SearchScreen { align: center middle; }
    SearchScreen > Vertical { width: 90%; max-width: 110; height: 85%; background: $surface;
        border: round $accent; padding: 0 1; }
    SearchScreen Input { height: 1; border: none; padding: 0; background: $boost; }
    SearchScreen OptionList { height: 1fr; border: none; padding: 0; }
    SearchScreen OptionList:focus { border: none; }
    SearchScreen Static { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("down", "walk('cursor_down')", "Next", show=False, priority=True),
        Binding("up", "walk('cursor_up')", "Before", show=False, priority=True),
        Binding("pagedown", "walk('page_down')", show=False, priority=True),
        Binding("pageup", "walk('page_up')", show=False, priority=True),
    ]

    def __init__(self, store: Conversations, text: str = "") -> None:
        super().__init__()
        self._store, self._text = store, text
        self._hits: list[Hit] = []
        self._wanted = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Field(self._text, placeholder="Words of a message or a title", compact=True)
            yield OptionList(markup=False)
            yield Static("Enter goes there, Up and Down choose, Esc leaves", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        if self._text:
            self._search(self._text)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._wanted = event.value
        self.set_timer(PAUSE_S, lambda: self._if_still(event.value))

    def _if_still(self, text: str) -> None:
        if text == self._wanted:
            self._search(text)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _search(self, text: str) -> None:
        found = self._store.search(text, LIMIT)
        self.app.call_from_thread(self._show, text, found)

    def _show(self, text: str, found: list[Hit]) -> None:
        if text != self._wanted or not self.is_mounted:
            return
        self._hits = found
        now = datetime.datetime.now()
        listed = self.query_one(OptionList)
        listed.set_options([Option(hit_lines(hit, now)) for hit in found])
        listed.highlighted = 0 if found else None
        self.query_one(Static).update(Content(self._said(text)))

    def _said(self, text: str) -> str:
        if trouble := self._store.trouble:
            return escape_line(trouble.message)
        if not text.strip():
            return "Enter goes there, Up and Down choose, Esc leaves"
        n = len(self._hits)
        if n >= LIMIT:
            return f"the first {n} places: more words find fewer"
        return f"{n} place{'' if n == 1 else 's'}" if n else "nothing has all these words"

    def action_walk(self, action: str) -> None:
        getattr(self.query_one(OptionList), f"action_{action}")()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        index = self.query_one(OptionList).highlighted
        if index is not None and index < len(self._hits) and event.value == self._wanted:
            self.dismiss(self._hits[index])

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._hits[event.option_index])

    def action_leave(self) -> None:
        self.dismiss(None)


def hit_lines(hit: Hit, now: datetime.datetime) -> Content:
    """Where it is, and below it the part of the text; what matched is bold and underlined."""
    title = escape_line(hit.title[:80]) or "untitled"
    head = f"{_ROLES.get(hit.role, 'message')}, {day_text(hit.when, now)}: {title}\n  "
    pieces = [(escape_line(text), "bold underline" if hit_ else "") for text, hit_ in hit.pieces]
    return Content.assemble((head, "dim"), *pieces)
