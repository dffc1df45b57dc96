"""A field for the path of a file, which helps with names that are there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, Static

from localllm.errors import FileError, LocalLLMError
from localllm.plain_text import escape_line
from localllm.tui.widgets.field import Field

_MOST = 5000  # names of a folder that are looked at

Result = TypeVar("Result")


class PathSuggester(Suggester):
    """Goes on with what was typed, if a name that is there begins so."""

    def __init__(self, endings: tuple[str, ...]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._endings = endings

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(self.suggest, value)

    def suggest(self, value: str) -> str | None:
        """The first folder, or file with a known ending, in order of names."""
        folder, _, begun = value.rpartition("/")
        if not begun:
            return None
        try:
            base = Path(f"{folder}/" if "/" in value else ".").expanduser()
            with os.scandir(base) as entries:
                for _, entry in zip(range(_MOST), sorted(entries, key=_name), strict=False):
                    if entry.name.startswith(begun) and entry.name.isprintable():
                        if entry.is_dir():
                            return value + entry.name[len(begun) :] + "/"
                        if entry.name.lower().endswith(self._endings):
                            return value + entry.name[len(begun) :]
        except (OSError, ValueError, RuntimeError):
            pass
        return None


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


class PathDialog(ModalScreen["Result | None"], Generic[Result]):
    """Asks for a path until `work_on` takes it; the result is what that returns, None if the user
    leaves."""

    ENDINGS: ClassVar[tuple[str, ...]] = (".json",)
    DEFAULT_CSS = """
    PathDialog { align: center middle; }
    PathDialog > Vertical { width: 90%; max-width: 90; height: auto; padding: 1 2;
        background: $surface; border: round $accent; }
    PathDialog RadioSet, PathDialog RadioSet:focus, PathDialog Checkbox,
    PathDialog Checkbox:focus { border: none; padding: 0; width: auto;
        background: transparent; }
    PathDialog #said { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(self, question: str, path: str) -> None:
        super().__init__()
        self._question, self._path = question, path
        self._busy = False
        self._replaced: Path | None = None

    def more(self) -> list[Widget]:
        """What stands between the field and the last line."""
        return []

    def work_on(self, path: Path) -> Result:
        """Runs in a thread. Raises `LocalLLMError`: it is shown, and the user may try again."""
        raise NotImplementedError

    def ask_to_replace(self, path: Path) -> None:
        """Raises `FileError` the first time that this file is named, if it is there."""
        if path.exists() and self._replaced != path:
            self._replaced = path
            raise FileError("there is such a file already", "Enter once more replaces it")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Content(self._question))
            yield Field(
                self._path, id="path", suggester=PathSuggester(self.ENDINGS), select_on_focus=False
            )
            yield from self.more()
            yield Static("Enter: go on. Right: take the name shown. Esc: leave.", id="said")

    def on_mount(self) -> None:
        field = self.query_one("#path", Input)
        field.focus()
        field.cursor_position = len(field.value)

    @on(Input.Submitted, "#path")
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip() and not self._busy:
            self._busy = True
            self.say("working...")
            self._work(event.value.strip())

    @work(thread=True, exit_on_error=False)
    def _work(self, text: str) -> None:
        try:
            result = self.work_on(_expanded(text))
        except LocalLLMError as e:
            said = f"{e.message}. {e.hint or ''}" if e.hint else e.message
            self.app.call_from_thread(self._failed, said)
        except Exception as e:
            self.app.call_from_thread(self._failed, f"internal error: {type(e).__name__}: {e}")
        else:
            self.app.call_from_thread(self.dismiss, result)

    def _failed(self, text: str) -> None:
        self._busy = False
        if self.is_mounted:
            self.say(text)

    def say(self, text: str) -> None:
        """The last line."""
        self.query_one("#said", Static).update(Content(escape_line(text)))

    def action_leave(self) -> None:
        self.dismiss(None)


def _expanded(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as e:  # ~ without such a user
        raise FileError(f"{text[:80]!a} names no folder: {e}") from e
    if "\0" in text:
        raise FileError(f"{text[:80]!a} holds a NUL, which no file name can")
    if text.endswith(("/", os.sep)) or path.is_dir():
        raise FileError(f"{text[:200]!a} is a folder", "Name a file in it")
    return path
