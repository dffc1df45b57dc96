"""`bench` as a program on stand-in engines, its figures, and the order in which engines run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.command_line import ROOT, RUN_CLI, cli, environment, is_error
from stand_ins.conditions import wait

from localllm.cli import bench_report, bench_runs
from localllm.cli.bench_report import EngineFacts, Machine
from localllm.cli.bench_runs import Case, Result
from localllm.store.work import Work

FAKE = {"TEST_FAKE_SESSION": "measured_session"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Trained on 2048 tokens."""
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def bench(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return cli("bench", *args, home=home, env={**FAKE, **env})


def test_table(model: str, tmp_path: Path) -> None:
    done = bench(tmp_path, model)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("model ") and "llama F32, 64 parameters" in lines[0]
    assert "2 threads, reads 12.5 GB/s, int8 346 Gop/s" in lines[1]
    assert "avx2, loaded in 0.25 s" in lines[2] and "context 2048 tokens" in lines[2]
    assert "after 128, " in lines[3] and lines[3].endswith(" s after 512 tokens of prompt")
    rows = [line.split("  ") for line in lines[6:]]
    assert lines[5].split() == ["TEST", "TOKENS/S", "SPREAD", "OF", "THE", "ROOF"]
    assert [row[0] for row in rows] == [
        "prefill 128", "prefill 512", "decode at 0", "decode at 1024",
    ]  # fmt: skip
    assert "980 to 1000" in lines[6] and "98.0 to 100" in lines[8]
    assert done.stdout.isascii()
    assert done.stderr.endswith("note: chosen \\x1b[31mby hand\n")


def test_json(model: str, tmp_path: Path) -> None:
    done = bench(tmp_path, model, "--json", "--engine", "native", "--repetitions", "4")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == ["model", "machine", "engines", "tests", "complete", "n_tests"]
    assert (found["complete"], found["n_tests"]) == (True, 4)
    (engine,) = found["engines"]
    assert engine["name"] == "native" and engine["load_s"] == 0.25
    prefill, _, decode, deep = found["tests"]
    assert (prefill["kind"], prefill["n_tokens"], prefill["roof"]) == ("prefill", 128, "int8")
    assert (deep["kind"], deep["depth"], deep["roof"]) == ("decode", 1024, "memory")
    speed = decode["engines"]["native"]
    assert speed["runs"] == len(speed["seconds"]) == 4
    assert speed["min"] <= speed["median"] <= speed["max"] and 98 <= speed["median"] <= 100
    assert decode["ratios"] == {}


def test_instruction_set_from_the_environment(model: str, tmp_path: Path) -> None:
    found = json.loads(bench(tmp_path, model, "--json", LOCALLLM_ISA="scalar").stdout)
    assert found["engines"][0]["isa"] == "scalar"


def test_compare(model: str, tmp_path: Path) -> None:
    done = bench(tmp_path, model, "--compare")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if " native " in line and "x (" in line]
    assert len(rows) == 4 and "2.00x (2.00 to 2.00)" in rows[0] and "1.25x" in rows[3]
    assert done.stdout.count("  llama.cpp  ") >= 4
    found = figures(2)["tests"][0]
    assert found["ratios"] == {"llama.cpp": {"median": 1.0, "min": 1.0, "max": 1.0, "runs": 3}}


def test_compare_without_the_second_engine(model: str, tmp_path: Path) -> None:
    done = bench(tmp_path, model, "--compare", TEST_ENGINES="native")
    assert done.returncode == 1 and is_error(done.stderr, hint="localllm[compat]")
    done = bench(tmp_path, model, "--compare", "--engine", "native")
    assert done.returncode == 2 and is_error(done.stderr, "--compare", "--engine native")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_gives_what_is_there(model: str, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, str(RUN_CLI), "bench", model, "--json"],
        env=environment(tmp_path, **FAKE, TEST_BENCH_RUNS="10"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait((tmp_path / "waiting").exists)  # the first test takes 7 runs, all four 25
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    found = json.loads(out)
    assert not found["complete"] and len(found["tests"]) < 4
    assert f"interrupted after {len(found['tests'])} of 4 tests" in err


def test_context_too_short(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = small_models.gguf()
    key = b"llama.context_length"
    at = data.index(key) + len(key) + 4
    path.write_bytes(data[:at] + (100).to_bytes(4, "little") + data[at + 4 :])
    done = bench(tmp_path, str(path))
    assert done.returncode == 2 and is_error(done.stderr, "context of 100 tokens is too short")


def test_wrong_models(tmp_path: Path) -> None:
    done = bench(tmp_path, "smollm2:135m")
    assert done.returncode == 1 and is_error(done.stderr, hint="localllm pull smollm2:135m")
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    done = bench(tmp_path, str(tmp_path / "bad.gguf"))
    assert done.returncode == 1 and is_error(done.stderr, "bad.gguf")


@pytest.mark.parametrize("name", ["speed.png", "speed.SVG"])
def test_picture(model: str, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    done = bench(tmp_path, model, "--compare", "--picture", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"{path} written\n")
    data = path.read_bytes()
    if name.endswith("png"):
        assert data.startswith(b"\x89PNG") and len(data) > 10_000
    else:
        text = data.decode()
        for word in ("prefill 128", "decode at 1024", "llama.cpp", "tokens per second"):
            assert word in text


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("speed.gif", 2, "ends in none of .png, .svg"), ("none/speed.png", 1, "there is no folder")],
)
def test_picture_that_cannot_be(
    model: str, tmp_path: Path, name: str, code: int, said: str
) -> None:
    done = bench(tmp_path, model, "--picture", str(tmp_path / name))
    assert done.returncode == code and is_error(done.stderr, said)


def test_picture_without_matplotlib(model: str, tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['matplotlib'] = None; sys.argv[1:2] = [];"
        f"import runpy; runpy.run_path({str(RUN_CLI)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, "-", "bench", model, "--picture", str(tmp_path / "a.png")],
        env=environment(tmp_path, **FAKE),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert is_error(done.stderr, "matplotlib", hint="pip install 'localllm[bench]'")


def test_busy_machine_is_said(model: str, tmp_path: Path) -> None:
    for load, said in (("0.9", False), ("1.1", True)):  # of 4 CPUs
        code = (
            f"import psutil; psutil.getloadavg = lambda: ({load}, 0, 0);"
            f"import runpy, sys; sys.argv[1:2] = [];"
            f"runpy.run_path({str(RUN_CLI)!r}, run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, "-", "bench", model, "--engine", "native", "--json"],
            env=environment(tmp_path, **FAKE),
            capture_output=True,
            text=True,
            check=True,
        )
        assert (f"busy here (load {load} on 4 CPUs)" in done.stderr) is said
        assert json.loads(done.stdout)["machine"]["load"] == float(load)


def test_the_higher_roof_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import localllm.session
    from localllm.cli.bench import _machine

    for first, second in ((1.0, 2.0), (2.0, 1.0)):
        roofs = SimpleNamespace(n_threads=2, read_gb_per_s=first, int8_gop_per_s=first)
        monkeypatch.setattr(localllm.session, "machine_roofs", lambda roofs=roofs: roofs)
        before = _machine(None)
        roofs.read_gb_per_s = roofs.int8_gop_per_s = second
        after = _machine(before)
        assert (after.read_gb_per_s, after.int8_gop_per_s, after.load) == (2.0, 2.0, before.load)


class Recorded:
    """An engine that writes down what it is asked for."""

    def __init__(self, name: str, calls: list[Any], seconds: float = 1.0) -> None:
        self.name, self.calls, self.seconds = name, calls, seconds

    def time_prefill(self, n_tokens: int) -> float:
        self.calls.append((self.name, n_tokens))
        return self.seconds

    def time_decode(self, depth: int, n_tokens: int) -> Iterator[float]:
        self.calls.append((self.name, "fill", depth))
        while True:
            self.calls.append((self.name, n_tokens))
            yield self.seconds


def test_engines_run_in_turn() -> None:
    calls: list[Any] = []
    engines = {"a": Recorded("a", calls), "b": Recorded("b", calls, 2.0)}
    said: list[str] = []
    result = bench_runs.run(engines, Case("prefill", 64), 2, 60, said.append)
    assert calls == [("a", 64), ("b", 64)] * 3  # the first pair warms up
    assert result.seconds == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert result.speeds("b") == [32.0, 32.0] and result.ratios("a", "b") == [2.0, 2.0]
    assert said[0] == "prefill 64, a: warming up" and said[-1] == "prefill 64, b: 2 of 2"


def test_decode_fills_the_context_once() -> None:
    calls: list[Any] = []
    bench_runs.run({"a": Recorded("a", calls)}, Case("decode", 1024), 3, 60, lambda text: None)
    assert calls == [("a", "fill", 1024)] + [("a", bench_runs.DECODE_TOKENS)] * 4


def test_budget_ends_the_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)

    class Slow(Recorded):
        def time_prefill(self, n_tokens: int) -> float:
            clock.now += self.seconds
            return self.seconds

    monkeypatch.setattr(bench_runs.time, "monotonic", lambda: clock.now)
    for seconds, budget, counted in ((1.0, 100, 5), (1.0, 3.5, 3), (10.0, 15, 1), (20.0, 15, 1)):
        slow = {"a": Slow("a", [], seconds)}
        result = bench_runs.run(slow, Case("prefill", 64), 5, budget, lambda text: None)
        assert len(result.seconds["a"]) == counted, (seconds, budget)


def test_cases_that_fit() -> None:
    def names(n_ctx: int) -> list[str]:
        return [test.name for test in bench_runs.cases_that_fit(n_ctx, 5)]

    assert names(128) == []
    assert names(194) == ["prefill 128", "decode at 0"]
    most = bench_runs.context_needed(4096, 5)
    assert len(names(most)) == 6 and len(names(most - 1)) == 5


def figures(n_engines: int = 1) -> dict[str, Any]:
    """A document with known shares: half of the int8 roof, a quarter of the memory roof."""
    names = ["native", "llama.cpp"][:n_engines]
    facts = [EngineFacts(name, 0.1, "avx2", 2, 1000, 10**9, 10**6, 10**8) for name in names]
    prefill = Result(Case("prefill", 128), {name: [1.28, 1.28, 1.28] for name in names})
    decode = Result(Case("decode", 0), {name: [32.0, 32.0, 64.0] for name in names})
    work = Work(layer_ops=1e9, head_ops=0.0, step_bytes=1e9)
    machine = Machine(2, 4.0, 200.0, n_cpus=2, load=0.1)
    about = {"name": "\x1b[31mm", "architecture": "llama", "quantization": "Q4_0",
             "n_params": 1, "file_bytes": 1}  # fmt: skip
    return bench_report.document(about, machine, facts, [prefill, decode], work, complete=True)


def test_share_of_the_roof() -> None:
    prefill, decode = figures()["tests"]
    assert prefill["engines"]["native"]["share_of_roof"] == 0.5
    # 1e9 bytes of weights a second, and 80 tokens of the 1000 that take 1e6 bytes
    assert decode["engines"]["native"]["share_of_roof"] == pytest.approx(0.25, abs=1e-4)
    assert decode["engines"]["native"]["median"] == 1.0


def test_keys_and_values_count_at_depth() -> None:
    work = Work(0.0, 0.0, 1e9)
    facts = [EngineFacts("native", 0.1, "avx2", 2, 1000, 0, 10**9, 0)]
    machine = Machine(1, 2.0, 1.0, n_cpus=1, load=0.0)
    result = Result(Case("decode", 936), {"native": [32.0, 32.0]})
    (test,) = bench_report.document({}, machine, facts, [result], work, complete=True)["tests"]
    # Half way through, 1000 tokens are kept: as much as the weights, so all of the roof.
    assert test["engines"]["native"]["share_of_roof"] == 1.0


@pytest.mark.parametrize("n_engines", [1, 2])
def test_table_is_inert_and_aligned(n_engines: int) -> None:
    text = bench_report.table(figures(n_engines))
    assert "\x1b" not in text and "\\x1b[31mm" in text
    assert "##########\n" in text and text.isascii()  # stdout of a test is no screen
    assert ("RATIO" in text) == (n_engines == 2)
    rows = text[text.index("TEST") :].splitlines()
    assert len(rows) == 1 + 2 * n_engines
    ends = {row.index("%") for row in rows[1:]}
    assert len(ends) == 1


def test_bars() -> None:
    assert bench_report.bar(0.5, fancy=False) == "#" * 10
    assert bench_report.bar(0.5, fancy=True) == "█" * 10
    assert bench_report.bar(0.525, fancy=True) == "█" * 10 + "▌"
    for share in (-1.0, 0.0):
        assert bench_report.bar(share, fancy=True) == bench_report.bar(share, fancy=False) == ""
    assert bench_report.bar(7.0, fancy=True) == "█" * 20


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("more", "bars"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_bars_on_a_terminal(model: str, tmp_path: Path, more: dict[str, str], bars: bool) -> None:
    pexpect = pytest.importorskip("pexpect")
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/tests/cli', sys.argv[1] + "
        "'/tests']; from test_bench import *; from localllm.cli import output;"
        "output.emit(bench_report.table(figures()))"
    )
    env = environment(tmp_path, **{"TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more})
    env = {k: v for k, v in env.items() if k != "NO_COLOR" or "NO_COLOR" in more}
    child = pexpect.spawn(
        sys.executable, ["-c", code, str(ROOT)], env=env, encoding="utf-8", dimensions=(24, 100)
    )
    child.expect(pexpect.EOF)
    text = child.before
    assert ("██" in text) is bars and ("##" in text) is not bars


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_progress_is_drawn_and_cleared(model: str, tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(
        sys.executable,
        [str(RUN_CLI), "bench", model, "--compare", "--repetitions", "2"],
        env=environment(tmp_path, TERM="xterm", **FAKE),
        encoding="utf-8",
        dimensions=(24, 100),
    )
    child.expect(pexpect.EOF)
    text = child.before
    for part in ("measuring the machine", "native: first run", "prefill 512, llama.cpp: 2 of 2"):
        assert part in text
    last = text.rsplit("\x1b[K", 1)[1]
    assert last.startswith("model ") and "prefill 128" in last


def test_work_of_counts_experts_that_run(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np

    from localllm.store.work import work_of

    path = tmp_path / "moe.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    for name, shape in {
        "token_embd.weight": (100, 32),
        "output.weight": (100, 32),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_up_exps.weight": (8, 64, 32),
    }.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    work = work_of(path)
    layers = 32 * 32 + 8 * 64 * 32 // 4
    assert work.layer_ops == 2 * layers and work.head_ops == 2 * 3200
    assert work.step_bytes == 4 * (3200 + layers + 32)
