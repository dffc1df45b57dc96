"""What draws on the terminal, made so that a terminal that goes away does not hold up the end of
the program: what was said has to be written first.

Textual's thread that writes ends at the first error, and whoever hands it more text waits for ever
(8.0). So nothing that the terminal refuses is an error here.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from textual.driver import Driver

from localllm.tui import terminal_input


class _Lasting:
    """A file that takes text also where nobody reads it any more."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def lasting(kind: type[Driver]) -> type[Driver]:
    """A driver of this kind that writes to such a file, and reads pastes whole."""
    terminal_input.use_in(sys.modules[kind.__module__])

    class LastingDriver(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            file: Any = getattr(self, "_file", None)
            if file is not None:
                if hasattr(file, "reconfigure"):  # of another encoding than UTF-8
                    file.reconfigure(errors="replace")
                self._file = _Lasting(file)

    return LastingDriver
