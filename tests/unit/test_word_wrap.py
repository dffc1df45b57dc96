"""Words stay whole, whatever pieces the text comes in; looked at on a terminal's screen."""

from __future__ import annotations

import random
import re
import textwrap

import pytest

from localllm.cli.word_wrap import WordWrap, wrapped

pyte = pytest.importorskip("pyte")


def screen_of(pieces: list[str], columns: int, lines: int = 60) -> list[str]:
    """What a terminal shows, without the empty lines at its end."""
    screen = pyte.Screen(columns, lines)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(screen)
    wrap = WordWrap(lambda: columns)
    for piece in pieces:
        stream.feed(wrap.feed(piece))
    shown = [line.rstrip() for line in screen.display]
    while shown and not shown[-1]:
        shown.pop()
    return shown


def pieces_of(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), 20)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("columns", [2, 7, 20, 40, 80])
@pytest.mark.parametrize("seed", range(10))
def test_as_if_the_whole_text_were_known(columns: int, seed: int) -> None:
    rng = random.Random(seed)
    letters = "abcdefgh"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 14))) for _ in range(30)]
    text = " ".join(words)
    expected = textwrap.wrap(text, columns - 1, break_long_words=True, break_on_hyphens=False)
    if all(len(word) < columns for word in words):
        assert screen_of(pieces_of(text, seed), columns) == expected
    shown = screen_of(pieces_of(text, seed), columns, 400)
    assert "".join(shown).replace(" ", "") == text.replace(" ", "")
    assert all(len(line) < columns for line in shown)


def test_lines_of_the_text_stay() -> None:
    assert screen_of(["one\n\n  two", " three four"], 12) == ["one", "", "  two three", "four"]
    assert screen_of(["ab\tcd ef"], 12) == ["ab      cd", "ef"]


def test_wide_characters_break_anywhere() -> None:
    assert screen_of(["漢字漢字漢字"], 9) == ["漢字漢字", "漢字"]
    assert screen_of(["ab 漢字 cdefg"], 9) == ["ab 漢字", "cdefg"]


def test_code_is_left_alone() -> None:
    code = "x = [" + "1, " * 20 + "]"
    wrap = WordWrap(lambda: 20)
    text = f"so:\n```python\n{code}\n```\nand some words after it\n"
    written = wrap.feed(text)
    assert code in written
    assert written.endswith("and some words afte\x1b[4D\x1b[K\nafter it\n")


def test_everything_is_shown_at_once() -> None:
    wrap = WordWrap(lambda: 80)
    assert [wrap.feed(c) for c in "he y"] == list("he y")


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("one two three", 9, ["one two", "three"]),
        ("one two\n\nthree four", 8, ["one two", "", "three", "four"]),
        ("  one two three", 10, ["  one two", "  three"]),
        ("a /long/path/of/it b", 8, ["a", "/long/path/of/it", "b"]),
        ("one  two   three", 12, ["one  two", "three"]),
        ("漢字 漢字 漢字", 10, ["漢字 漢字", "漢字"]),
        ("          deep one", 10, ["deep one"]),
        ("fits", 5, ["fits"]),
        ("fits not", 1, ["fits", "not"]),
    ],
)
def test_a_text_known_whole(text: str, columns: int, lines: list[str]) -> None:
    assert wrapped(text, columns).split("\n") == lines


@pytest.mark.parametrize("columns", [7, 20, 40])
@pytest.mark.parametrize("seed", range(5))
def test_colours_take_no_room(columns: int, seed: int) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(30)]
    styled = [f"\x1b[31;1m{word}\x1b[0m" if rng.random() < 0.3 else word for word in words]
    expected = textwrap.wrap(" ".join(words), columns - 1)
    shown = wrapped(" ".join(styled), columns)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).split("\n") == expected
    assert shown.replace("\n", " ") == " ".join(styled)
