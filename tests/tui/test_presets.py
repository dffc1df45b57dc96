"""Presets in their file, and parameters as people type them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ArgumentError, FileError, FormatError
from localllm.params import PARAMETERS
from localllm.tui.presets import Presets, Wishes

CALM = Wishes("Be calm.\nAlways.", {"temperature": 0.2, "stop": ["a", "\n"]}, "low")


def test_round_trip(tmp_path: Path) -> None:
    presets = Presets(tmp_path / "config")
    assert presets.all() == {}
    assert presets.save("  Calm [b]\u00e9 ", CALM) == "Calm [b]\u00e9"
    presets.save("another", Wishes(think=False))
    again = Presets(tmp_path / "config")
    assert list(again.all()) == ["another", "Calm [b]\u00e9"]
    assert again.all()["Calm [b]\u00e9"] == CALM
    assert again.all()["another"] == Wishes(None, {}, False)
    assert stat.S_IMODE(presets.path.stat().st_mode) == 0o600
    again.delete("another")
    again.delete("another")
    assert list(presets.all()) == ["Calm [b]\u00e9"]


@pytest.mark.parametrize("name", ["", "   ", "a\x1bb", "x" * 61, "a\nb", "\u202e"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="name of a preset"):
        Presets(tmp_path).save(name, CALM)
    assert not (tmp_path / "presets.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1, "presets": 3}', "\x00",
                                  '{"version": 2, "presets": {}}'])  # fmt: skip
def test_a_file_that_is_none_of_ours_is_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "presets.json"
    path.write_text(text)
    presets = Presets(tmp_path)
    for act in (presets.all, lambda: presets.save("a", CALM), lambda: presets.delete("a")):
        with pytest.raises(FormatError, match=r"presets\.json"):
            act()
    assert path.read_text() == text


def test_what_is_out_of_range_is_left_out(tmp_path: Path) -> None:
    row = {"system": 3, "think": 1, "params": {"temperature": 9, "top_k": 5, "new_one": 1}}
    document = {"version": 1, "presets": {"a": row, "b": {"think": "loud"}}}
    (tmp_path / "presets.json").write_text(json.dumps(document))
    found = Presets(tmp_path).all()
    assert found["a"].params == {"top_k": 5}
    assert found["a"].system is None
    assert found["b"] == Wishes()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="config"):
        Presets(tmp_path / "file" / "config").save("a", CALM)


TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)


@given(texts=TEXTS, bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)))
def test_a_value_as_text_is_that_value_again(texts: list[str], bias: dict[int, float]) -> None:
    values: dict[str, Any] = {"stop": tuple(texts), "logit_bias": tuple(sorted(bias.items()))}
    values["dry_sequence_breakers"] = tuple(texts)
    for name, value in values.items():
        row = PARAMETERS[name]
        assert row.parse(row.text(value)) == value


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_defaults_as_text(name: str) -> None:
    row = PARAMETERS[name]
    assert row.parse(row.text(row.default)) == row.default
    for value in {int: (row.low, row.high), float: (row.low, row.high)}.get(row.kind, ()):
        if not row.only or value in row.only:
            value = row.checked(value)
            assert row.parse(row.text(value)) == value
