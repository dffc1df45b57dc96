"""Tables: aligned in cells, inert, and readable on a narrow screen."""

from __future__ import annotations

import pytest

from localllm.cli.output import cells_of
from localllm.cli.table import Column, clipped, render

COLUMNS = (Column("NAME", cut=True), Column("SIZE", right=True), Column("STATE"))
ROWS = [["one", "1 B", "ready"], ["a-longer-name", "123 kB", "not here, 92.9 MB to download"]]


def test_alignment() -> None:
    assert render(COLUMNS, ROWS, None) == (
        "NAME             SIZE  STATE\n"
        "one               1 B  ready\n"
        "a-longer-name  123 kB  not here, 92.9 MB to download\n"
    )
    assert render(COLUMNS, ROWS, 79) == render(COLUMNS, ROWS, None)


@pytest.mark.parametrize(
    ("text", "cells"),
    [("", 0), ("abc", 3), ("\u00e9", 1), ("e\u0301", 1), ("\u4f60\u597d", 4), ("\U0001f600", 2),
     ("a\u200bb", 2), ("\uff21", 2)],
)  # fmt: skip
def test_cells(text: str, cells: int) -> None:
    assert cells_of(text) == cells


def test_wide_characters_align() -> None:
    rows = [["\u4f60\u597d", "1", "x"], ["e\u0301", "1", "x"]]
    lines = render(COLUMNS, rows, None).splitlines()
    assert len({cells_of(line[: line.index("x")]) for line in lines[1:]}) == 1


@pytest.mark.parametrize("width", range(16))
def test_clipped_is_never_longer(width: int) -> None:
    for text in ("hello there world", "\u4f60\u597d" * 9, "ab"):
        cut = clipped(text, width)
        assert cells_of(cut) <= width
        assert cut == text or cells_of(text) > width


def test_cut_column_gives_way_first() -> None:
    rows = [["n" * 40, "1 B", "ready"]]
    lines = render(COLUMNS, rows, 30).splitlines()
    assert lines[1].startswith("nnnnnnn") and "...  " in lines[1] and lines[1].endswith("ready")
    assert all(cells_of(line) <= 30 for line in lines)


@pytest.mark.parametrize("width", [14, 20, 24, 30, 40, 50])
def test_narrow_screen_breaks_at_spaces(width: int) -> None:
    text = render(COLUMNS, ROWS, width)
    words = {word for row in ROWS for cell in row for word in cell.split()}
    shown = text.replace("name:", "").replace("size:", "").replace("state:", "").split()
    if width < 45:
        assert words <= set(shown)
        assert all(len(line) <= width or len(line.split()) == 1 for line in text.splitlines())
    assert "downlo\n" not in text


def test_hostile_cells_are_inert() -> None:
    rows = [["\x1b]0;owned\x07", "\u202e1", "a\nb\tc"]]
    for width in (None, 79, 20):
        text = render(COLUMNS, rows, width)
        assert not set(text) & set("\x1b\x07\u202e\t")
    assert len(render(COLUMNS, rows, None).splitlines()) == 2
