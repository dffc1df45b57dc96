"""A text to a file."""

from __future__ import annotations

from pathlib import Path

from localllm.store.durable import disk_error, replacing
from localllm.tui.screens.path_dialog import PathDialog


class SaveScreen(PathDialog[Path]):
    """The result is the file that was written."""

    ENDINGS = ()

    def __init__(self, what: str, name: str, text: str) -> None:
        super().__init__(f"Save {what} to:", name)
        self._text = text

    def work_on(self, path: Path) -> Path:
        self.ask_to_replace(path)
        try:
            with replacing(path) as file:
                file.write(self._text.encode("utf-8", "replace"))
        except OSError as e:
            raise disk_error("write", path, e, movable=False) from e
        return path
