"""A text to a file."""

from __future__ import annotations

from pathlib import Path

from localllm.errors import FileError
from localllm.store.durable import disk_error, replacing
from localllm.tui.screens.path_dialog import PathDialog


class SaveScreen(PathDialog[Path]):
    """The result is the file that was written."""

    ENDINGS = ()

    def __init__(self, what: str, name: str, text: str) -> None:
        super().__init__(f"Save {what} to:", name)
        self._text = text
        self._replaced: Path | None = None

    def work_on(self, path: Path) -> Path:
        if path.exists() and self._replaced != path:
            self._replaced = path
            raise FileError("there is such a file already", "Enter once more replaces it")
        try:
            with replacing(path) as file:
                file.write(self._text.encode("utf-8", "replace"))
        except OSError as e:
            raise disk_error("write", path, e, movable=False) from e
        return path
