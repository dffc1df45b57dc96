"""Measured speeds: what is kept, what a damaged file costs, and which model tells of which."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from localllm.store import speeds
from localllm.store.speeds import BENCH, RUN, Measured

ONE = Measured("a:1b", "sha256:1", "native", "avx2", 2, 1e9, 1000.0, 0.0, 10.0, RUN)


def test_a_speed_behind_another_number_of_tokens() -> None:
    assert ONE.bytes_per_s == 1e10 and ONE.at(0) == 10.0
    assert ONE.at(1_000_000) == pytest.approx(5.0)  # as many bytes of cache as of weights
    deep = dataclasses.replace(ONE, depth=1_000_000.0, tokens_per_s=5.0)
    assert deep.at(0) == pytest.approx(10.0)


def test_one_figure_for_each_model_and_engine(tmp_path: Path) -> None:
    other = dataclasses.replace(ONE, engine="llama.cpp")
    faster = dataclasses.replace(ONE, tokens_per_s=11.0)
    for each in (ONE, other, faster):
        speeds.note(tmp_path / "cache", each)
    assert speeds.load(tmp_path / "cache") == [other, faster]
    bench = dataclasses.replace(ONE, tokens_per_s=12.0, by=BENCH)
    speeds.note(tmp_path / "cache", bench)
    speeds.note(tmp_path / "cache", ONE)  # a bench measures more than an answer
    assert speeds.load(tmp_path / "cache") == [other, bench]
    speeds.note(tmp_path / "cache", dataclasses.replace(bench, tokens_per_s=9.0))
    assert [each.tokens_per_s for each in speeds.load(tmp_path / "cache")] == [10.0, 9.0]


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "MOST", 2)
    for digest in "abc":
        speeds.note(tmp_path, dataclasses.replace(ONE, digest=digest))
    assert [each.digest for each in speeds.load(tmp_path)] == ["b", "c"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens_per_s", 0), ("tokens_per_s", "fast"), ("weight_bytes", 0.5), ("name", 3),
     ("n_threads", True), ("depth", -1), ("kv_bytes", 1e300), ("by", None)],
)  # fmt: skip
def test_a_bad_figure_does_not_count(tmp_path: Path, field: str, value: object) -> None:
    bad = {**dataclasses.asdict(ONE), field: value}
    document = {"version": 1, "models": [bad, dataclasses.asdict(ONE)]}
    (tmp_path / speeds.NAME).write_text(json.dumps(document))
    assert speeds.load(tmp_path) == [ONE]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"version": 1}', '{"version": 1, "models": [{}]}']
)
def test_a_damaged_file_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / speeds.NAME).write_text(text)
    assert speeds.load(tmp_path) == []
    speeds.note(tmp_path, ONE)
    assert speeds.load(tmp_path) == [ONE]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    speeds.note(tmp_path / "file", ONE)
    assert speeds.load(tmp_path / "file") == []


def test_the_nearest_model() -> None:
    small, large = (dataclasses.replace(ONE, weight_bytes=n) for n in (1e9, 6e9))
    known = [small, large, dataclasses.replace(ONE, engine="llama.cpp", weight_bytes=3e9)]
    assert speeds.nearest(known, "native", 2e9) is small
    assert speeds.nearest(known, "native", 3e9) is large
    assert speeds.nearest(known, "native", 23e9) is large
    assert speeds.nearest(known, "native", 25e9) is None  # more than four times
    assert speeds.nearest([], "native", 1e9) is None
