"""One sampling parameter as a field: checked while it is typed, and set back by itself."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Static

from localllm.errors import ArgumentError
from localllm.params import DEFAULT_WORDS, Parameter
from localllm.plain_text import escape_line
from localllm.tui.presets import plain
from localllm.tui.widgets.field import Field


class ParameterField(Horizontal):
    """An empty field is not set: its placeholder says what counts then."""

    DEFAULT_CSS = """
    ParameterField { height: 1; padding: 0 1; }
    ParameterField .name { width: 22; }
    ParameterField Input { width: 1fr; max-width: 40; height: 1; border: none; padding: 0 1; }
    ParameterField Input.-wrong { background: $error 40%; }
    ParameterField .mark { width: 9; padding: 0 1; }
    ParameterField Button { min-width: 7; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", "Next", show=False),
        Binding("up", "app.focus_previous", "Previous", show=False),
    ]

    class Told(Message):
        """What there is to say of the parameter under the cursor."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, row: Parameter, usual: Any) -> None:
        """usual: what counts where nothing is set."""
        super().__init__()
        self.row, self._usual = row, usual
        self.error = ""
        self._value: Any = None
        self._is_set = False

    def compose(self) -> ComposeResult:
        yield Static(self.row.name, classes="name", markup=False)
        yield Field(placeholder=escape_line(self._usual_text()), compact=True)
        yield Static("", classes="mark", markup=False)
        reset = Button("reset", compact=True)
        reset.can_focus = False  # the key for it is the screen's
        yield reset

    def _usual_text(self) -> str:
        if self._usual == self.row.default and self.row.name in DEFAULT_WORDS:
            return DEFAULT_WORDS[self.row.name]
        return self.row.text(self._usual) or "nothing"

    @property
    def value(self) -> tuple[bool, Any]:
        """Whether it is set, and to what, as JSON holds it."""
        return self._is_set, self._value

    def put(self, is_set: bool, value: Any = None) -> None:
        """Shows a value, or that there is none."""
        self.query_one(Input).value = self.row.text(value) if is_set else ""

    @property
    def help(self) -> str:
        """In words: what it is for, its range, and what is wrong now."""
        row = self.row
        if self.error:
            return f"Wrong: {self.error}"
        return f"{row.name}: {row.help} It may be {row.span}. Usually {self._usual_text()}."

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        text, field = event.value, self.query_one(Input)
        self.error, self._is_set, self._value = "", bool(text.strip()), None
        if self._is_set:
            try:
                self._value = plain(self.row.parse(text))
            except ArgumentError as e:
                self.error = f"{e.message}. {e.hint or ''}".rstrip()
        field.set_class(bool(self.error), "-wrong")
        mark = "wrong" if self.error else "set" if self._is_set else ""
        self.query_one(".mark", Static).update(Content(mark))
        self.post_message(self.Told(self.help))

    @on(Button.Pressed)
    def reset(self) -> None:
        """Sets nothing any more."""
        self.put(False)
        self.query_one(Input).focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.post_message(self.Told(self.help))
