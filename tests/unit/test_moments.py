"""Points in time and spans of it, as people and programs write them."""

from __future__ import annotations

import datetime

import pytest

from localllm import moments
from localllm.errors import ArgumentError


def test_ages() -> None:
    now = datetime.datetime(2026, 11, 29, 18, tzinfo=datetime.timezone.utc)
    ages = {
        "2026-11-29T18:00:00+00:00": "just now",
        "2026-11-29T19:00:00+00:00": "just now",  # a clock that was set back
        "2026-11-29T17:58:59+00:00": "1 minute ago",
        "2026-11-29T17:00:00+01:00": "2 hours ago",
        "2026-11-27T17:00:00+00:00": "2 days ago",
        "2026-11-29T17:00:00": "-",
        "\x1b[31m": "-",
    }
    assert {text: moments.ago(text, now) for text in ages} == ages
    assert moments.ago(None) == "-"


def test_iso() -> None:
    assert moments.iso(0.9) == "1970-01-01T00:00:00+00:00"
    assert moments.ago(moments.iso()) == "just now"


def test_spans() -> None:
    spans = {"30m": 1800, "12h": 43200, "7d": 604800, " 2W ": 1209600, "0d": 0}
    assert {text: moments.span(text) for text in spans} == spans


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 d", "1y", "123456d", "\u0667d", "7d7d"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ArgumentError, match="no span of time"):
        moments.span(text)
