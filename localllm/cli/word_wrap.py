"""Words whole on the screen.

An answer comes in pieces, and every character of it is shown at once, so a word is on the screen
before its end is known. If it passes the edge, what is there of it is taken back and goes to the
next line. Lines of code between ``` are left as they are: they are copied more often than read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from localllm.cli.output import cells_of

_FENCE = "```"
_TAB = 8
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_WORD = re.compile("( *)([^ ]+)")


def wrapped(text: str, columns: int) -> str:
    """A text that is known whole, its lines broken between words. Colours take no room, a line
    goes on under its own indentation. A word longer than a line, such as a path, is left to the
    terminal, from which it can be copied whole."""
    width = max(columns - 1, 1)
    return "\n".join([_wrapped_line(line, width) for line in text.split("\n")])


def _wrapped_line(line: str, width: int) -> str:
    if _cells_of_styled(line) <= width:
        return line
    rest = line.lstrip(" ")
    indent = line[: len(line) - len(rest)]
    if len(indent) > width // 2:
        indent = ""
    lines, current = [], ""
    for spaces, word in _WORD.findall(rest):
        longer = (current + spaces if current else indent) + word
        if current and _cells_of_styled(longer) > width:
            lines.append(current)
            longer = indent + word
        current = longer
    return "\n".join([*lines, current])


def _cells_of_styled(text: str) -> int:
    return cells_of(_SGR.sub("", text))


class WordWrap:
    """Takes text that is safe for a terminal, gives what to write. `columns` tells the width."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._cells = 0  # on the current line
        self._word = ""  # the end of that line that must stay together
        self._head = ""  # the beginning of the text's own line
        self._in_code = False

    def feed(self, text: str) -> str:
        """What to write for the next piece."""
        # In the last column a terminal waits with the line break, and its cursor cannot be told
        # from where it was: the column stays free.
        width = max(self._columns() - 1, 1)
        return "".join([self._placed(character, width) for character in text])

    def _placed(self, character: str, width: int) -> str:
        if character == "\n":
            if self._head.lstrip(" ").startswith(_FENCE):
                self._in_code = not self._in_code
            self._cells, self._word, self._head = 0, "", ""
            return character
        if len(self._head) < 8:
            self._head += character
        if self._in_code or self._head.lstrip(" ").startswith(_FENCE):
            return character
        if character in " \t":
            return self._space(character, width)
        cells = cells_of(character)
        if self._cells + cells <= width:
            self._cells += cells
            self._word = "" if cells > 1 else self._word + character  # a wide one is a word
            return character
        kept = cells_of(self._word)
        if kept == self._cells:  # the word fills the line: it is cut
            self._cells, self._word = cells, character
            return "\n" + character
        self._word += character
        self._cells = kept + cells
        back = f"\x1b[{kept}D\x1b[K" if kept else ""
        return back + "\n" + self._word

    def _space(self, character: str, width: int) -> str:
        self._word = ""
        step = 1 if character == " " else _TAB - self._cells % _TAB
        if self._cells + step > width:
            self._cells = 0
            return "\n"
        self._cells += step
        return character
