"""The benchmarks' own arithmetic: pairs, r(n), plans, old CSV files, pictures, arguments."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import benchmarks.__main__ as bench
from benchmarks import pairs, plots, pool, report, rival_process, roofs, speed, steps
from benchmarks.pairs import Engines
from benchmarks.report import Row, Run
from localllm.engine import machine
from localllm.store.work import Work

RUN = Run("2026-01-01T00:00:00+00:00", "abc1234", "some-cpu", "avx2", 2, "AVX2")
OLD_HEADER = (
    "time,commit,machine,isa,n_threads,rival_build,test,subject,unit,ours,rival,ratio,ratio_low,"
    "ratio_high,n_pairs,roof,roof_value,share"
)


class FakeEngines(Engines):
    """Seconds from lists; None: the rival refuses."""

    def __init__(self, mine: list[float], theirs: list[float | None]) -> None:
        self._mine, self._theirs = iter(mine), iter(theirs)
        self.order = ""
        self.note = ""
        self.threads = roofs.Threads(1)
        self.row_seconds = 1000.0

    def time_ours(self, method: str, args: tuple[int, ...]) -> float:
        self.order += "A"
        return next(self._mine)

    def time_rival(self, kind: str, method: str, args: tuple[int, ...]) -> tuple[float, str] | None:
        self.order += "B"
        seconds = next(self._theirs)
        if seconds is None:
            self.note = "llama.cpp died"
            return None
        return seconds, "flash on, repack off"


@pytest.fixture
def steady_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[float] = iter([10.0, 40.0, 20.0, 30.0])
    monkeypatch.setattr(roofs.Threads, "read_gb_per_s", lambda self: next(looks))


TEST = pairs.Test("decode", "time_decode", (10, 32, 1), 10, roofs.READ, 8.0, "decode")


@pytest.mark.usefixtures("steady_roofs")
def test_pairs_alternate_and_the_median_of_their_ratios_counts() -> None:
    engines = FakeEngines([9, 1, 2, 1, 1, 1], [9, 2, 3, 4, 1, 1])
    row = pairs.run(engines, "m", TEST, 5)
    assert engines.order == "AB" * 6
    assert (row.ratio, row.ratio_low, row.ratio_high, row.n_pairs) == (1.5, 1, 4, 5)
    assert (row.ours, row.rival) == (10, 5)
    assert (row.roof_value, row.share) == (40.0, 0.2)  # the best look; 8 GB a second
    assert (row.rival_variant, row.note) == ("flash on, repack off", "")


@pytest.mark.usefixtures("steady_roofs")
@pytest.mark.parametrize("theirs", [[None], [9.0, 2.0, None]])
def test_a_rival_that_dies_leaves_a_note_and_no_ratio(theirs: list[float | None]) -> None:
    row = pairs.run(FakeEngines([9, 1, 1, 1], theirs), "m", TEST, 3)
    assert (row.ours, row.rival, row.ratio, row.n_pairs) == (10, None, None, 0)
    assert (row.rival_variant, row.note) == ("", "llama.cpp died")
    assert "llama.cpp died" in report.table([row])


@pytest.mark.usefixtures("steady_roofs")
def test_a_slow_rival_is_cut_and_keeps_the_pairs_it_has() -> None:
    engines = FakeEngines([9, 1, 1, 1], [9, 2, 7, 7])
    engines.row_seconds = 0.0
    row = pairs.run(engines, "m", TEST, 3)
    assert engines.order == "ABABAA"
    assert (row.ours, row.rival, row.ratio, row.n_pairs) == (10, 5, 2, 1)
    assert row.note == "cut after 1 of 3 pairs: the rival may take 0 s for a row"
    assert "flash on, repack off; cut after 1 of 3" in report.table([row])


def test_step_rows_compare_runs_of_one_round() -> None:
    mine = {1: [9.0, 1.0, 2.0, 4.0], 4: [9.0, 1.5, 3.0, 8.0]}
    theirs = {1: [9.0, 2.0, 2.0, 2.0], 4: [9.0, 6.0, 6.0, 6.0]}
    one, four = steps.rows("m", "sequences", mine, theirs, {1: "a", 4: "b"}, "")
    assert (one.ours, one.rival, one.ratio) == (1, 1, 1)
    assert (four.test, four.ours, four.rival, four.ratio) == ("r(4), sequences", 1.5, 3, 2)
    assert four.rival_variant == "b"
    theirs[4].pop()
    one, four = steps.rows("m", "sequences", mine, theirs, {1: "a", 4: "b"}, "died")
    assert (one.ratio, four.rival, four.ratio, four.note) == (1, None, None, "died")


def test_a_plan_becomes_tests_the_deepest_last() -> None:
    plan = speed.Plan(512, 32, (4096, 0), ("f16", "q8_0"), (1, 16))
    found = speed.tests(plan, "f16", Work(2e6, 1e6, 5e6), lambda depth: 100.0 * depth)
    assert [t.name for t in found] == [
        "prefill 512", "decode", "decode, batch of 16", "prefill 512 at 4096", "decode at 4096",
    ]  # fmt: skip
    assert found[0].need == pytest.approx((512 * 2e6 + 1e6) / 1e9)
    assert found[2].need == pytest.approx(8 * (5e6 + 16 * 3200) / 1e9)
    assert found[2].n_tokens == 128
    assert len({t.kind for t in found}) == 5 and found[4].args == (16, 4096, 1)
    assert speed.n_ctx_tokens(found) == 4096 + 512 + 96
    q8 = speed.tests(plan, "q8_0", Work(2e6, 1e6, 5e6), lambda depth: 0.0)
    assert [t.name for t in q8][1:3] == ["decode, q8_0 KV", "prefill 512 at 4096, q8_0 KV"]


class FakeRival:
    """A variant whose seconds are in `speeds`; those that are missing crash."""

    speeds: ClassVar[dict[tuple[bool, bool], float]] = {}
    open: ClassVar[list[tuple[bool, bool]]] = []
    depths: ClassVar[list[int]] = []

    def __init__(self, path: Path, *, flash_attention: bool, repack: bool) -> None:
        self.variant, self.holds_much = (flash_attention, repack), False
        if self.variant not in self.speeds:
            raise RuntimeError("no context")
        self.open.append(self.variant)

    def close(self) -> None:
        self.open.remove(self.variant)

    def time_decode(self, n: int) -> float:
        return self.speeds[self.variant]

    def time_prefill(self, n: int, depth: int) -> float:
        self.depths.append(depth)
        return self.speeds[self.variant]


def test_the_fastest_variant_that_runs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = rival_process.Variants(Path("m"), {})
    made: dict[tuple[bool, bool], FakeRival] = {}

    def rival(variant: tuple[bool, bool]) -> FakeRival:
        if variant not in variants._loaded:
            flash, repack = variant
            made[variant] = FakeRival(Path("m"), flash_attention=flash, repack=repack)
            variants._loaded[variant] = made[variant]  # type: ignore[assignment]
        return made[variant]

    monkeypatch.setattr(variants, "_rival", rival)
    monkeypatch.setattr(FakeRival, "speeds", {(True, True): 3.0, (True, False): 2.0})
    monkeypatch.setattr(FakeRival, "open", [])
    assert variants.time("decode", "time_decode", (1,)) == (2.0, "flash on, repack off")
    assert FakeRival.open == [(True, False)]
    monkeypatch.setattr(FakeRival, "speeds", {})
    variants._loaded.clear()
    with pytest.raises(RuntimeError, match="no context"):
        variants.time("prefill", "time_decode", (1,))


def test_only_the_chosen_variant_fills_a_long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {v: 3.0 - v[0] - v[1] for v in rival_process._VARIANTS}
    monkeypatch.setattr(FakeRival, "speeds", speeds)
    monkeypatch.setattr(FakeRival, "depths", [])
    variants = rival_process.Variants(Path("m"), {}, keep_all=True)
    made = {v: FakeRival(Path("m"), flash_attention=v[0], repack=v[1]) for v in speeds}
    monkeypatch.setattr(variants, "_rival", made.__getitem__)
    found = variants.time("prefill, deep", "time_prefill", (512, 8192))
    assert found == (1.0, "flash on, repack on")
    assert FakeRival.depths == [0] * 4 + [1024] * 2 + [8192]
    # One candidate is not tried: what its context holds would be lost.
    variants = rival_process.Variants(Path("m"), {"kv_type": "q8_0"}, thorough=False)
    monkeypatch.setattr(variants, "_rival", made.__getitem__)
    FakeRival.depths.clear()
    assert variants.time("prefill, deep", "time_prefill", (512, 8192))[0] == 1.0
    assert FakeRival.depths == [8192]


def test_an_older_csv_file_gets_the_new_columns_and_keeps_its_rows(tmp_path: Path) -> None:
    old = tmp_path / "some-cpu.csv"
    cells = "t,c,some-cpu,avx2,2,B,decode,m,tok/s,12.5,,,,,0,read GB/s,31,0.5"
    old.write_text(f"{OLD_HEADER}\n{cells}\n", encoding="utf-8")
    row = Row("decode", "m", "tok/s", 99.0, 33.0, 3.0, 2.9, 3.1, 5, rival_variant="flash, on")
    report.append_csv(RUN, [row, Row("decode", "other", "tok/s", 7.0, note="died")], tmp_path)
    lines = old.read_text(encoding="utf-8").splitlines()
    assert lines[0] == OLD_HEADER + ",rival_variant,note"
    assert lines[1] == cells + ",,"
    with old.open(newline="", encoding="utf-8") as f:
        assert [r["rival_variant"] for r in csv.DictReader(f)] == ["", "flash, on", ""]
    assert report.latest(old) == [row, Row("decode", "other", "tok/s", 7.0, note="died")]


def test_the_committed_results_have_todays_header() -> None:
    for path in report.RESULTS.glob("*.csv"):
        header = path.read_text(encoding="utf-8").split("\n", 1)[0]
        assert header == ",".join(report.columns()), path
        assert report.latest(path)


def picture_rows() -> list[Row]:
    rows = [
        Row(f"matmul {n} columns", t, "GB/s", 1.0, share=0.1 * n)
        for n in (8, 64)
        for t in ("Q4_0", "Q4_K")
    ]
    rows += [
        Row(f"r({n}), {form}", "m", "t(n)/t(1)", n, n + 1) for n in (1, 2) for form in steps.FORMS
    ]
    for kv in ("f16", "q8_0"):
        rows += [Row(speed.test_name("decode", d, kv), "m", "tok/s", 9.0, 3.0) for d in (0, 4096)]
    return rows


def test_pictures_are_small_and_only_of_what_was_measured(tmp_path: Path) -> None:
    written = plots.draw(picture_rows(), tmp_path)
    assert [p.stem for p in written] == ["share-of-roof", "step-growth", "speed-over-depth"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)
    assert sum(p.stat().st_size for p in written) < 200_000
    few = [Row("decode", "m", "tok/s", 9.0), Row("r(2), sequences", "m", "t(n)/t(1)", 1.1)]
    assert [p.stem for p in plots.draw(few, tmp_path / "b")] == ["step-growth"]


def test_arguments_quick_full_and_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    full, quick = bench.parse([]), bench.parse(["--quick", "ops", "--columns", "2"])
    assert full.columns == [1, 2, 3, 4, 8, 16, 64, 512]
    assert full.steps == list(range(1, 17)) and full.batches == [1, 2, 4, 8, 16, 32]
    assert full.depths == [0, 4096, 8192] and full.kv_types == ["f16", "q8_0"]
    assert (full.pairs, full.deep, quick.depths, quick.columns) == (5, bench.DEEP, [0], [2])
    with pytest.raises(SystemExit):
        bench.parse(["nothing"])
    assert "no section nothing: choose from" in capsys.readouterr().err


def test_a_quota_that_cannot_be_set_leaves_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "quota_group", lambda quota: nullcontext())
    (row,) = pool._quota_rows("m", Path("m.gguf"), 1.5, 2, 1, 0.1)
    assert (row.test, row.ours) == ("quota of 1.5 CPUs, default", None)
    assert "may not make a control group" in row.note


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    row = Row("prefill", "m", "tok/s", 1.0)
    path = report.append_csv(RUN, [row], tmp_path)
    size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            report.append_csv(RUN, [row], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == size
    report.append_csv(RUN, [row], tmp_path)
    assert len(report.read_csv(path)) == 2


def test_a_line_that_a_kill_cut_is_left_out_and_spoils_no_other(tmp_path: Path) -> None:
    row = Row("prefill", "m", "tok/s", 1.0)
    path = report.append_csv(RUN, [row, row], tmp_path)
    with path.open("r+b") as f:
        f.truncate(path.stat().st_size - 30)
    assert len(report.read_csv(path)) == 1
    report.append_csv(RUN, [row], tmp_path)
    assert len(report.read_csv(path)) == 2
    assert [each.ours for each in report.latest(path)] == [1.0]


def test_one_picture_shows_one_commit(tmp_path: Path) -> None:
    old, new = Row("prefill", "m", "tok/s", 1.0), Row("decode", "m", "tok/s", 2.0)
    report.append_csv(RUN, [old], tmp_path)
    path = report.append_csv(replace(RUN, commit="def5678"), [new], tmp_path)
    assert report.latest(path) == [new]


def test_a_file_is_small_beside_what_its_process_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    for memory, small in ((16_001, True), (16_000, False)):
        facts = replace(machine.facts(), memory_bytes=memory)
        monkeypatch.setattr(machine, "facts", lambda facts=facts: facts)
        assert rival_process._is_small(path) == small


def test_the_read_roof_takes_at_most_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(machine.facts(), free_bytes=64 << 20)
    monkeypatch.setattr(machine, "facts", lambda: facts)
    assert machine.roof_bytes(1 << 30) == 32 << 20 and machine.roof_bytes(1 << 20) == 1 << 20
    assert machine.measure_roofs(1).n_bytes == 32 << 20
    read = next(iter(roofs.measure(roofs.Threads(1), 1)))
    assert read.subject == "read of 1 GiB" and read.note == "of 32 MiB: memory is short"
