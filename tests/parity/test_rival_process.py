"""The rival of the benchmarks in its own process: it runs, refuses, or dies, and each is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks import memory, pairs, speed, synthetic
from benchmarks.rival_process import RivalProcess
from benchmarks.roofs import Threads

SHAPE = synthetic.Shape(2, 256, 512, 4, 2, 64, 1024, True)
# No repacked weights here: some builds of llama.cpp crash with them (docs/decisions/0002).
PLAIN = [(True, False), (False, False)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    synthetic.write(tmp_path / "a.gguf", SHAPE, "Q8_0")
    return tmp_path / "a.gguf"


def test_it_dies_and_the_rows_say_so(model: Path) -> None:
    plan = speed.Plan(32, 8, (0,), ("f16",), (1,))
    with pairs.Engines(
        model, Threads(1), pairs.RivalChoice(), n_ctx_tokens=1024, max_sequences=1
    ) as engines:
        assert engines.rival is not None and engines.note == ""
        pid = engines.rival._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        (test, _) = speed.tests(plan, "f16", speed.work_of(model), engines.ours.kv_bytes)
        row = pairs.run(engines, "m", test, 1)
        assert row.ours > 0 and row.ratio is None and "llama.cpp died" in row.note
        assert engines.rival is None


def test_it_takes_too_long_and_is_ended(model: Path) -> None:
    rival = RivalProcess(model, n_threads=1)
    with pytest.raises(RuntimeError, match=r"cut: the rival took more than 0\.001 s"):
        rival.time("a", "time_prefill", (512, 0), 0.001)
    assert not rival.is_alive
    with pytest.raises(RuntimeError, match="died"):
        rival.time("a", "time_prefill", (1, 0))
    rival.close()


def test_it_runs_holds_a_depth_and_refuses_what_it_cannot(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import rival_process

    monkeypatch.setattr(rival_process, "_VARIANTS", PLAIN)
    variants = rival_process.Variants(
        model, {"n_threads": 1, "n_ctx_tokens": 4096, "max_sequences": 2}
    )
    for method, args in (
        ("time_prefill", (40, 0)), ("time_prefill", (40, 64)), ("time_decode", (3, 64, 2)),
        ("time_step", (4, 64, 1)), ("time_decode", (2, 96, 1)), ("time_step", (1, 32, 2)),
    ):  # fmt: skip
        seconds, variant = variants.time(f"{method} {args}", method, args)
        assert 0 < seconds < 10 and variant.endswith("repack off")
    with pytest.raises(RuntimeError, match="llama_decode returned"):
        variants.time("too long", "time_prefill", (5000, 0))
    (model.parent / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match=r"refused .*b\.gguf"):
        rival_process.Variants(model.parent / "b.gguf", {"n_threads": 1}).time(
            "a", "time_prefill", (1, 0)
        )


def test_a_library_that_is_not_there(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / "nothing"))
    with pytest.raises(RuntimeError, match="does not load"):
        RivalProcess(model, n_threads=1)


@pytest.mark.skipif(not memory.STATUS.exists(), reason="needs /proc")
def test_memory_rows(model: Path) -> None:
    rows = list(memory.measure("m", model, Threads(1), pairs.RivalChoice(False), ("q8_0",)))
    assert [(r.test, r.subject) for r in rows] == memory.keys("m", "q8_0")
    assert [r.test for r in rows] == ["peak memory, q8_0 KV", "context token, q8_0 KV"]
    assert 0.5 < rows[0].ours < 1000 and rows[0].share is not None
    assert rows[1].ours == 2 * 2 * 2 * 64 * (1 + 2 / 32)
