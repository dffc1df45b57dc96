"""Tables on stdout: columns aligned by the cells that characters take, and on a narrow screen a
layout that no terminal has to break in the middle of a word."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from localllm.cli import output

_GAP = "  "
_SHORTEST = 12  # a column is not cut below this


@dataclass(frozen=True)
class Column:
    """A column: its head, whether its cells end at the right edge, and whether they may be cut
    where the screen is too narrow."""

    head: str
    right: bool = False
    cut: bool = False


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """The table's text. `width`: cells of the screen, None for a file or a pipe, where nothing is
    cut. Cells are escaped here."""
    cells = [[column.head for column in columns]]
    cells += [[output.escape_line(cell) for cell in row] for row in rows]
    widths = [max(output.cells_of(line[i]) for line in cells) for i in range(len(columns))]
    if width is not None:
        _shrink(columns, widths, width)
        if _total(widths) > width:
            return _stacked(cells, width)
    return "".join(
        _GAP.join(
            _fitted(cell, space, column.right)
            for cell, space, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        + "\n"
        for line in cells
    )


def screen_width() -> int | None:
    """Cells of a line of the terminal behind stdout, None if there is no terminal."""
    try:
        if sys.stdout is None or not sys.stdout.isatty():
            return None
        # The last column stays free: some terminals wrap as soon as it is filled.
        return (os.get_terminal_size(sys.stdout.fileno()).columns or 80) - 1
    except (OSError, ValueError):
        return None


def clipped(text: str, width: int) -> str:
    """At most `width` cells of a line; dots show that there was more."""
    if output.cells_of(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += output.cells_of(character)
        if used > width - 3:
            break
        kept.append(character)
    return ("".join(kept).rstrip() + "...")[: max(width, 0)]


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    for i, column in enumerate(columns):
        excess = _total(widths) - width
        if column.cut and excess > 0:
            widths[i] = max(widths[i] - excess, min(widths[i], _SHORTEST))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fitted(cell: str, space: int, right: bool) -> str:
    shown = clipped(cell, space)
    padding = " " * (space - output.cells_of(shown))
    return padding + shown if right else shown + padding


def _stacked(cells: Sequence[Sequence[str]], width: int) -> str:
    """Each row as a paragraph: its first cell, and below it the others with their heads."""
    heads, *rows = cells
    lines = []
    for first, *rest in rows:
        lines.append(first)
        for head, cell in zip(heads[1:], rest, strict=True):
            lines += textwrap.wrap(
                f"{head.lower()}: {cell}",
                max(width, 8),
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
    return "".join(f"{line}\n" for line in lines)
