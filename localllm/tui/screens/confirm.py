"""A question with two answers, before something is done that cannot be undone."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from localllm.plain_text import escape


class ConfirmScreen(ModalScreen[bool]):
    """Ends with True if the user agreed. The cautious answer has the focus."""

    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen Vertical {
        width: 80%; max-width: 70; height: auto; padding: 1 2;
        background: $surface; border: round $primary;
    }
    ConfirmScreen Static { height: auto; max-height: 12; }
    ConfirmScreen Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
    ConfirmScreen Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", "Other", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str = "Keep") -> None:
        """yes, no: the verbs on the buttons, such as Delete and Keep."""
        super().__init__()
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(escape(self._question), markup=False)
            with Horizontal():
                yield Button(f"{self._no} (n)", id="no", compact=True)
                yield Button(f"{self._yes} (y)", id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, agreed: bool) -> None:
        self.dismiss(agreed)
