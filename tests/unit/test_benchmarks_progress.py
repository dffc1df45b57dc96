"""A run of the bench: what it plans, how far it is, what stays of it, and going on with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import benchmarks.__main__ as bench
from benchmarks import files, ops, pool, report, serving, speed, start, steps
from benchmarks.pairs import RivalChoice
from benchmarks.progress import Begun, Piece, Progress, last_begun
from benchmarks.report import Key, Row


def row(test: str, ours: float | None = 1.0) -> Row:
    return Row(test, "m", "tok/s", ours)


def piece(
    *tests: str, measured: list[str] | None = None, then: Callable[[], None] | None = None
) -> Piece:
    """Rows of these tests; `then` runs behind the first."""

    def measure(missing: Collection[Key]) -> Iterator[Row]:
        for test, _ in missing:
            if measured is not None:
                measured.append(test)
            yield row(test)
            if then:
                then()

    return Piece(tuple((test, "m") for test in tests), measure)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    append = report.append_csv
    monkeypatch.setattr(report, "append_csv", lambda run, rows: append(run, rows, tmp_path))
    monkeypatch.setattr(bench, "BEGUN", tmp_path / "run.json")
    return tmp_path


def sections(monkeypatch: pytest.MonkeyPatch, **pieces: Piece) -> None:
    table = {name: (lambda c, p=p: iter([p])) for name, p in pieces.items()}
    monkeypatch.setattr(bench, "SECTIONS", table)


def test_time_left_weighs_rows_by_their_section() -> None:
    plan = {"ops": [piece("a", "b")], "speed": [piece("c", "d"), piece("e")]}
    now = [100.0]
    progress = Progress(plan, [("e", "m")], lambda: now[0])
    assert str(progress) == "1 of 5 rows"
    now[0] = 104.0
    progress.came("ops", row("a"))
    assert str(progress) == "2 of 5 rows, about 2 min left"  # a row of 2 and two of 28, twice each
    progress.came("ops", row("a"))  # again: nothing new
    progress.came("ops", row("unplanned"))
    assert progress.missing("speed", plan["speed"][0]) == [("c", "m"), ("d", "m")]
    assert progress.missing("speed", plan["speed"][1]) == []
    progress.failed("speed")
    assert str(progress) == "2 of 3 rows, about 4 s left"
    progress.came("ops", row("b"))
    assert str(progress) == "3 of 3 rows"


def fails() -> None:
    raise ValueError("no such file")


def ended() -> None:
    raise KeyboardInterrupt


def test_a_section_that_fails_leaves_a_note_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections(monkeypatch, a=piece("prefill 512", then=fails), b=piece("decode"))
    kept: list[list[str]] = []  # each row is safe when it has come
    append = report.append_csv

    def keep(run: report.Run, rows: list[Row]) -> Path:
        kept.append([each.test for each in rows])
        return append(run, rows)

    monkeypatch.setattr(report, "append_csv", keep)
    assert bench.main([]) == 1
    assert kept == [["prefill 512"], ["section a"], ["decode"]]
    out, err = capsys.readouterr()
    assert "section a    failed" in out and "ValueError: no such file" in out
    assert "section b: 0 s" in err
    assert [each.ours for each in report.latest(report.csv_path())] == [1.0, None, 1.0]
    assert bench.main(["b", "--no-csv"]) == 0


def test_a_run_that_is_ended_keeps_its_rows_and_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []
    cut = piece("one", "two", "three", measured=measured, then=ended)
    sections(monkeypatch, a=cut, b=piece("four", measured=measured))
    assert bench.main(["a", "b", "--quick", "--json"]) == bench.ENDED_BY_USER
    err = capsys.readouterr().err
    assert "ended with 1 of 4 rows, about" in err
    assert f"rows are in {report.csv_path()}, and --continue does the rest" in err
    assert report.latest(report.csv_path()) == [row("one")]

    whole = piece("one", "two", "three", measured=measured)
    sections(monkeypatch, a=whole, b=piece("four", measured=measured))
    assert bench.main(["--continue"]) == 0
    out, err = capsys.readouterr()
    assert measured == ["one", "two", "three", "four"]
    assert "goes on with: a b --quick --json" in err
    assert [each["test"] for each in json.loads(out)["rows"]] == measured
    assert bench.main(["--continue"]) == 0  # there is nothing to do, and all is shown
    assert len(measured) == 4 and len(report.read_csv(report.csv_path())) == 4


def test_only_a_run_that_compares_is_continued(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    with pytest.raises(SystemExit, match="nothing to continue: no run whose rows were kept"):
        bench.main(["--continue"])
    Begun(report.now(), "abc", []).write(results / "run.json")
    assert last_begun(results / "run.json", "abc").argv == []
    with pytest.raises(ValueError, match="measured commit abc, and this is def"):
        last_begun(results / "run.json", "def")
    old = datetime.now(timezone.utc) - timedelta(days=1, seconds=1)
    Begun(old.isoformat(timespec="seconds"), "abc", []).write(results / "run.json")
    with pytest.raises(ValueError, match="more than a day ago"):
        last_begun(results / "run.json", "abc")
    (results / "run.json").write_text("[")
    with pytest.raises(ValueError, match="damaged"):
        last_begun(results / "run.json", "abc")
    with pytest.raises(SystemExit):
        bench.parse(["--continue", "ops"])


def test_rows_of_other_commits_times_and_failed_sections_are_not_of_a_run() -> None:
    def run(time: str, commit: str) -> report.Run:
        return report.Run(time, commit, report.machine_name(), "avx2", 2)

    failed = Row("section a", report.FAILED, "", None)
    for each, rows in (
        (run("2026-01-01T00:00:00+00:00", "c"), [row("early")]),
        (run("2026-01-02T00:00:00+00:00", "c"), [row("one"), failed]),
        (run("2026-01-02T00:00:01+00:00", "other"), [row("two")]),
        (run("2026-01-02T00:00:02+00:00", "c"), [row("one", 2.0)]),
    ):
        path = report.append_csv(each, rows)
    assert report.rows_since(path, "2026-01-02T00:00:00+00:00", "c") == [row("one", 2.0)]
    assert report.rows_since(path.with_name("none.csv"), "", "c") == []


def test_the_plan_of_all_sections_has_no_row_twice() -> None:
    for argv in ([], ["--quick"]):
        args = bench.parse(argv)
        context = bench.Context(args, bench.roofs.Threads(1), RivalChoice(False))
        plan = {name: [*bench.SECTIONS[name](context)] for name in bench.SECTIONS}
        keys = [key for pieces in plan.values() for each in pieces for key in each.keys]
        assert len(keys) == len(set(keys)) and Progress(plan).n_planned == len(keys)
        assert all(plan.values())


def test_sections_measure_what_is_missing_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ops, "measure", lambda *args: asked.append(args[1:3]) or iter([]))
    args = bench.parse(["ops", "--types", "Q4_0", "Q4_K", "--columns", "1", "8"])
    context = bench.Context(args, bench.roofs.Threads(1), RivalChoice(False))
    _one, two = bench.SECTIONS["ops"](context)
    assert two.keys == (("matmul 1 column", "Q4_K"), ("matmul 8 columns", "Q4_K"))
    assert [*two.measure([two.keys[1]])] == [] and asked == [(["Q4_K"], [8])]

    monkeypatch.setattr(start, "pack_rates", lambda types: (row(t) for t in types))
    monkeypatch.setattr(files, "path_of", Path)
    monkeypatch.setattr(start, "load_rate", lambda name, path: row(f"load {path}"))
    missing = [start.keys()[0], ("load, all threads", files.REAL[1])]
    got = [each.test for each in start.measure(missing=missing)]
    assert got == [ops.TYPES[0], f"load {files.REAL[1]}"]

    monkeypatch.setattr(pool, "_many_threads", lambda *args: iter([row(str(args[2]))]))
    monkeypatch.setattr(pool, "_quota_rows", lambda *args: iter([row(f"quota {args[2]}")]))
    monkeypatch.setattr(pool.machine, "facts", lambda: type("F", (), {"n_cpus": 2}))
    keys = pool.keys("m")
    got = [each.test for each in pool.measure("m", Path(), missing=[keys[1], keys[4]])]
    assert got == ["[2, 8]", "quota 1.0"]

    setup = serving.Setup(1, 2, True, False)
    monkeypatch.setattr(serving, "PARTS", dict.fromkeys(
        serving.PARTS, lambda setup: iter([row(str(setup.clients))])
    ))  # fmt: skip
    planned = serving.keys(setup)
    assert [*planned] == [*serving.PARTS]
    got = [each.test for each in serving.measure(setup, [planned["clients"][3]])]
    assert got == ["[32]"]


def test_missing_tests_of_a_model_open_no_other_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = speed.Plan(512, 32, (0, 4096), ("f16", "q8_0"), (1, 4))
    keys = speed.keys("m", plan)
    assert [test for test, _ in keys if "batch" in test] == ["decode, batch of 4"]
    opened: list[str] = []

    class Fake:
        ours = type("Ours", (), {"kv_bytes": staticmethod(lambda depth: 0.0)})

        def __init__(self, *args: object, kv_type: str, **more: object) -> None:
            opened.append(kv_type)

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *args: object) -> None:
            pass

    monkeypatch.setattr(speed, "Engines", Fake)
    monkeypatch.setattr(speed, "work_of", lambda path: speed.Work(1, 1, 1))
    monkeypatch.setattr(speed.pairs, "run", lambda engines, name, test, n: row(test.name))
    choice, threads = RivalChoice(False), bench.roofs.Threads(1)
    got = speed.measure("m", Path(), threads, plan, 1, choice, missing=keys[-1:])
    assert [each.test for each in got] == ["decode at 4096, q8_0 KV"] and opened == ["q8_0"]
    got = speed.measure("m", Path(), threads, plan, 1, choice)
    assert [(each.test, "m") for each in got] == keys


def test_step_keys_are_the_rows() -> None:
    seconds = {n: [1.0, 1.0] for n in (1, 4)}
    rows = steps.rows("m", steps.FORMS[1], seconds, seconds, {1: "a", 4: "b"}, "")
    assert [(r.test, r.subject) for r in rows] == steps.keys("m", steps.FORMS[1], [4])


def test_rows_that_cannot_be_kept_are_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    (results / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(bench, "BEGUN", results / "file" / "run.json")  # below what is no folder
    sections(monkeypatch, a=piece("one", "two"))
    assert bench.main([]) == 0
    out, err = capsys.readouterr()
    assert "one" in out and "two" in out
    assert err.count("warning: rows are kept no more") == 1

    def full(run: report.Run, rows: list[Row]) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench, "BEGUN", results / "run.json")
    monkeypatch.setattr(report, "append_csv", full)
    assert bench.main([]) == 0
    out, err = capsys.readouterr()
    assert "one" in out and "two" in out
    assert err.count("No space left on device") == 1
