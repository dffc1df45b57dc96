"""Conversations to a file, and out of one."""

from __future__ import annotations

from pathlib import Path

from textual import on
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Checkbox, Input, RadioButton, RadioSet

from localllm.tui.conversations import exporting, importing
from localllm.tui.conversations.importing import Imported
from localllm.tui.conversations.kinds import Conversation
from localllm.tui.conversations.store import Conversations
from localllm.tui.screens.path_dialog import PathDialog


class Kind(RadioButton):
    """Empty where it is not chosen: its colour alone would say nothing to many."""

    def render(self) -> Content:
        self.BUTTON_INNER = "●" if self.value else " "
        return super().render()


class Tick(Checkbox):
    """Empty where it is not set."""

    def render(self) -> Content:
        self.BUTTON_INNER = "X" if self.value else " "
        return super().render()


class ExportScreen(PathDialog[Path]):
    """The result is the file that was written."""

    ENDINGS = exporting.KINDS

    def __init__(self, store: Conversations, conversation: Conversation, path: str = "") -> None:
        super().__init__(
            "Export to Markdown (the shown branch, to read) or JSON (all, to import again):",
            path or exporting.file_name(conversation, ".md"),
        )
        self._store, self._conversation = store, conversation
        self._all = False

    def more(self) -> list[Widget]:
        kinds = RadioSet(Kind("Markdown", value=True, id="md"), Kind("JSON", id="json"), id="kind")
        return [kinds, Tick("all conversations", id="all")]

    @on(RadioSet.Changed)
    def _kind_changed(self, event: RadioSet.Changed) -> None:
        event.stop()
        field = self.query_one("#path", Input)
        field.value = f"{_stem(field.value)}.{event.pressed.id}"

    @on(Input.Changed, "#path")
    def _path_changed(self, event: Input.Changed) -> None:
        event.stop()
        ending = "md" if event.value.endswith(".md") else "json"
        button = self.query_one(f"#{ending}", RadioButton)
        if not button.value and event.value.endswith(exporting.KINDS):
            with self.prevent(RadioSet.Changed):
                button.value = True

    @on(Checkbox.Changed)
    def _all_changed(self, event: Checkbox.Changed) -> None:
        event.stop()
        self._all = event.value

    def work_on(self, path: Path) -> Path:
        ids = [self._conversation.id]
        if self._all:
            ids = [each.id for each in self._store.listed()]
        if path.suffix not in exporting.KINDS:
            path = path.with_name(path.name + ".json")
        self.ask_to_replace(path)
        return exporting.export(self._store, ids, path)


class ImportScreen(PathDialog[Imported]):
    """The result is what was added."""

    def __init__(self, store: Conversations, path: str = "") -> None:
        super().__init__(
            "Import JSON of localllm, lists of messages, or ChatGPT's conversations.json:", path
        )
        self._store = store

    def work_on(self, path: Path) -> Imported:
        return importing.import_file(self._store, path)


def _stem(path: str) -> str:
    return path[: -len(Path(path).suffix)] if path.endswith(exporting.KINDS) else path
