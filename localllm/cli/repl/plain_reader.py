"""Texts without a line editor: from a pipe, a simple terminal or a screen reader's."""

from __future__ import annotations

import sys

from localllm.cli import output
from localllm.cli.prompt_text import MAX_STDIN_BYTES, decode, too_long
from localllm.errors import ArgumentError

QUOTES = '"""'


class PlainReader:
    """Each line is a text; from a line that begins with three quotes up to the next three all
    lines are one. A prompt is shown on a terminal only."""

    edits = False

    def __init__(self) -> None:
        self.interactive = sys.stdin is not None and sys.stdin.isatty()

    def read(self) -> str:
        lines = [self._line("> ")]
        if open_quotes(lines[0]):
            n_bytes = len(lines[0])
            while QUOTES not in lines[-1] or len(lines) == 1:
                try:
                    lines.append(self._line(". "))
                except EOFError:
                    break
                n_bytes += len(lines[-1])
                if n_bytes > MAX_STDIN_BYTES:
                    raise too_long()
        return "\n".join(lines)

    def keep_history(self, wanted: bool) -> None:
        if wanted:
            raise ArgumentError("there is no history without a line editor")

    def expand(self, text: str) -> str:
        return text

    def was_empty(self) -> bool:
        return True

    def _line(self, prompt: str) -> str:
        if sys.stdin is None:
            raise EOFError
        if self.interactive:
            output.whisper(prompt)
        data = sys.stdin.buffer.readline(MAX_STDIN_BYTES + 1)
        if len(data) > MAX_STDIN_BYTES:
            while data and not data.endswith(b"\n"):  # none of it is a text of its own
                data = sys.stdin.buffer.readline(MAX_STDIN_BYTES)
            raise too_long()
        if not data:
            raise EOFError
        return decode(data).rstrip("\r\n")


def open_quotes(text: str) -> bool:
    """Whether a text begins with three quotes, perhaps after the command for instructions, and
    has not come to its end."""
    begin = text.lstrip()
    for command in ("/set system", "/system"):
        if begin.startswith(command):
            begin = begin.removeprefix(command).lstrip()
    return begin.startswith(QUOTES) and QUOTES not in begin[len(QUOTES) :]
