"""A field of one line that shows, and holds, nothing that would drive a terminal."""

from __future__ import annotations

from textual.widgets import Input

from localllm.plain_text import escape_line


class Field(Input):
    """Characters that control a terminal, of a paste or of a program, become their escapes."""

    def validate_value(self, value: str) -> str:
        return escape_line(value)
