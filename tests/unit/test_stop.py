"""Stop strings: whatever the splits, the shown text ends where the whole text would be cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ArgumentError
from localllm.text.stop import StopStrings


def cut(text: str, stops: list[str]) -> str:
    found = [i for i in (text.find(s) for s in stops) if i >= 0]
    return text[: min(found)] if found else text


@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_any_split_shows_the_same_text(text: str, stops: list[str], cuts: list[int]) -> None:
    stream, shown, hit = StopStrings(stops), "", False
    borders = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    for begin, end in pairwise(borders):
        piece, hit = stream.feed(text[begin:end])
        shown += piece
        if hit:
            break
    # A stream stops at the first stop string that is complete; one that begins earlier but ends
    # later may still be longer, so the shown text is a cut at some stop string.
    shown += "" if hit else stream.finish()
    if hit:
        assert any(text[len(shown) :].startswith(s) for s in stops)
        assert len(shown) >= len(cut(text, stops))
    else:
        assert shown == text == cut(text, stops)


def test_nothing_is_held_without_a_possible_start() -> None:
    stream = StopStrings(["END"])
    assert stream.feed("abc") == ("abc", False)
    assert stream.feed("E") == ("", False)
    assert stream.feed("N") == ("", False)
    assert stream.feed("X") == ("ENX", False)
    assert stream.feed("EN") == ("", False)
    assert stream.feed("D tail") == ("", True)


@pytest.mark.parametrize("strings", [[""], ["x" * 1025], ["x"] * 65])
def test_limits(strings: list[str]) -> None:
    with pytest.raises(ArgumentError, match="allowed"):
        StopStrings(strings)
