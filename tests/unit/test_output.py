"""Escaping, and the forms of sizes and times."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.conditions import wait

from localllm.cli import output
from localllm.cli.output import count_text, duration_text, escape, escape_line, size_text


def test_a_long_wait_is_said_once_without_a_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LONG_WAIT_S", 0.05)
    err = ""

    def said() -> bool:
        nonlocal err
        err += capsys.readouterr().err
        return bool(err)

    with output.waiting("the Hub: asking what there is"):
        wait(said)
        time.sleep(0.2)  # nothing more is said
    assert err + capsys.readouterr().err == "the Hub: asking what there is\n"
    monkeypatch.setattr(output, "LONG_WAIT_S", 60)
    with output.waiting("something short"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\n\twith lines\n", "plain text\n\twith lines\n"),
        ("\x1b[2J\x1b]52;c;aGk=\x07", "\\x1b[2J\\x1b]52;c;aGk=\\x07"),
        ("\x9b31mred\x9d0;t\x9c", "\\x9b31mred\\x9d0;t\\x9c"),
        ("over\rwrite\x08\x7f\0", "over\\x0dwrite\\x08\\x7f\\x00"),
        ("abc\u202edcba\u2066x\u2069\u200f", "abc\\u202edcba\\u2066x\\u2069\\u200f"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("half \ud83d", "half \\ud83d"),
        (
            "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
            "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
        ),
        (
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u4f60\u597d",
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u4f60\u597d",
        ),
        ("[/red] [b", "[/red] [b"),
        ("\xa0\xad", "\xa0\xad"),
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_lines_stay_lines() -> None:
    assert escape_line("a\nb\tc\r") == "a\\x0ab\\x09c\\x0d"


@given(st.text(st.characters()))
def test_nothing_unsafe_is_left(text: str) -> None:
    for shown, allowed in ((escape(text), "\n\t"), (escape_line(text), "")):
        for character in shown:
            control = unicodedata.category(character) in ("Cc", "Cs")
            bidi = unicodedata.bidirectional(character) in (
                "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "B",
            )  # fmt: skip
            assert character in allowed or not (control or bidi), hex(ord(character))
        shown.encode("utf-8")


@given(st.text(st.characters()), st.integers(0, 50))
def test_chunks_escape_like_the_whole(text: str, at: int) -> None:
    assert escape(text[:at]) + escape(text[at:]) == escape(text)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (92871040, "92.9 MB"), (999_949, "999.9 kB"),
     (999_950, "1.0 MB"), (253113024, "253.1 MB"), (4_000_000_000, "4.0 GB"),
     (999_950_000_000, "1.0 TB"), (5 * 10**15, "5000.0 TB")],
)  # fmt: skip
def test_size_text(n: int, text: str) -> None:
    assert size_text(n) == text


def test_other_forms() -> None:
    assert [count_text(n) for n in (5, 1500, 134515008, 7 * 10**9)] == [
        "5",
        "1.5k",
        "134.5M",
        "7.0B",
    ]
    assert [duration_text(s) for s in (0.4, 5, 65, 3661)] == ["0:00", "0:05", "1:05", "1:01:01"]
