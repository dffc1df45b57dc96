"""Asks for the path of a file and writes a text to it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from localllm.errors import LocalLLMError
from localllm.plain_text import escape, escape_line
from localllm.store.durable import replacing


class SaveScreen(ModalScreen[str]):
    """The result is the path that was written; empty if nothing was."""

    BINDINGS: ClassVar = [Binding("escape", "leave", "Leave")]

    def __init__(self, what: str, name: str, text: str) -> None:
        super().__init__()
        self._what, self._name, self._text = what, name, text
        self._asked_for = ""  # a file that is there, and may be replaced if it is asked for again

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content(f"Save {self._what} to:"))
            yield Input(self._name, id="path", select_on_focus=False)
            yield Static(id="said", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        self.dismiss("")

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self._write(event.value.strip())

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _write(self, name: str) -> None:
        problem = self._written(name)
        if problem:
            self.app.call_from_thread(self.query_one("#said", Static).update, escape(problem))
        else:
            self.app.call_from_thread(self.dismiss, name)

    def _written(self, name: str) -> str:
        """Writes the file; what speaks against it, if something does."""
        try:
            path = Path(name).expanduser()
            if path.is_dir():
                return "This is a folder: name a file in it."
            if path.exists() and self._asked_for != name:
                self._asked_for = name
                return "There is such a file already: Enter once more replaces it."
            with replacing(path) as file:
                file.write(self._text.encode("utf-8", "replace"))
        except LocalLLMError as e:
            return e.message
        except (OSError, ValueError, RuntimeError) as e:
            return f"cannot write {escape_line(name[:200])}: {getattr(e, 'strerror', None) or e}"
        return ""
