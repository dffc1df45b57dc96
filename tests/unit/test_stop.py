"""Stop strings: whatever the splits, the shown text ends where the whole text would be cut."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.errors import ArgumentError
from localllm.text.stop import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, StopStrings


def cut(text: str, stops: list[str]) -> str:
    """The definition."""
    found = [i for i in (text.find(s) for s in stops) if i >= 0]
    return text[: min(found)] if found else text


def held(text: str, stops: list[str]) -> int:
    """How much of a text without a stop string must be kept back."""
    ends = range(len(text), 0, -1)
    return next((n for n in ends if any(s.startswith(text[-n:]) for s in stops)), 0)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    return [text[begin:end] for begin, end in pairwise(borders)]


@settings(max_examples=400, deadline=None)
@given(
    st.text("ab😀", max_size=40),
    st.lists(st.text("ab😀", min_size=1, max_size=5), max_size=5),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_any_split_shows_the_same_text(text: str, stops: list[str], cuts: list[int]) -> None:
    stream, shown, hit, given_in = StopStrings(stops), "", False, ""
    for part in pieces_of(text, cuts):
        given_in += part
        piece, hit = stream.feed(part)
        shown += piece
        if hit:
            break
        if cut(given_in, stops) == given_in:
            assert len(shown) == len(given_in) - held(given_in, stops)
    shown += "" if hit else stream.finish()
    assert shown == cut(text, stops)
    assert not hit or cut(given_in, stops) != given_in


def test_strings_that_overlap_in_every_way() -> None:
    rng = random.Random(3)
    for _ in range(20_000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
        text = "".join(rng.choices("abc", (5, 5, 1), k=rng.randint(1, 14)))
        stream, shown, hit = StopStrings(stops), "", False
        for character in text:
            piece, hit = stream.feed(character)
            shown += piece
            if hit:
                break
        assert shown + ("" if hit else stream.finish()) == cut(text, stops), (text, stops)


def test_the_first_of_two_inside_a_longer_one() -> None:
    stream = StopStrings(["abcdX", "bc", "d"])
    assert stream.feed("abcd") == ("", False)
    assert stream.feed("e") == ("a", True)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_finish_cuts_what_it_completes(text: str, stops: list[str]) -> None:
    stream = StopStrings(stops)
    shown, hit = stream.feed(text[:-2])
    if not hit:
        assert shown + stream.finish(text[-2:]) == cut(text, stops)
        assert stream.feed("x") == ("x", False)


def test_nothing_is_held_without_a_possible_start() -> None:
    stream = StopStrings(["END"])
    assert stream.feed("abc") == ("abc", False)
    assert stream.feed("E") == ("", False)
    assert stream.feed("N") == ("", False)
    assert stream.feed("X") == ("ENX", False)
    assert stream.feed("EN") == ("", False)
    assert stream.feed("D tail") == ("", True)


def test_strings_inside_others() -> None:
    stream = StopStrings(["abcd", "bc"])
    assert stream.feed("xabc") == ("x", False)
    assert stream.feed("e") == ("a", True)
    assert stream.feed("xabcd") == ("x", True)
    assert stream.feed("xabc") == ("x", False)
    assert stream.finish() == "a"


class CountedLookups(dict[tuple[int, str], int]):
    n = 0

    def get(self, *key: Any) -> Any:
        self.n += 1
        return super().get(*key)


@pytest.mark.parametrize(
    "text",
    ["a" * 60_000, ("a" * 1000 + "b") * 60, "ab" * 30_000, "b" * 60_000, ("a" * 511 + "c") * 120],
)
def test_the_work_is_linear(text: str) -> None:
    """Two steps a character, however the strings overlap."""
    stops = ["a" * (MAX_STOP_CHARACTERS - n) + "xyz"[n % 3] * n for n in range(1, MAX_STOP_STRINGS)]
    stream = StopStrings([*stops, "a" * (MAX_STOP_CHARACTERS - 1) + "d"])
    automaton = stream._automaton
    automaton._next = counted = CountedLookups(automaton._next)
    shown = "".join(stream.feed(text[at : at + 7])[0] for at in range(0, len(text), 7))
    assert shown + stream.finish() == text
    assert len(text) <= counted.n <= 2 * len(text)


@pytest.mark.parametrize("strings", [[""], ["x" * 1025], ["x"] * 65])
def test_limits(strings: list[str]) -> None:
    with pytest.raises(ArgumentError, match="allowed"):
        StopStrings(strings)
