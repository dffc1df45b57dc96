"""The whole program, engine included, on a tiny seeded model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins.command_line import RUN_CLI, cli, environment, is_error

TinyModel = Callable[[str, str], Path]


@pytest.fixture
def model(tiny: TinyModel) -> str:
    return str(tiny("llama", "Q4_0"))


def run(model: str, home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return cli("run", model, *args, home=home, env={"TEST_FAKE_SESSION": ""})


def report(model: str, home: Path, *args: str) -> dict[str, Any]:
    done = run(model, home, "--json", "--raw", "--max-tokens=24", *args, "abc")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_seed_repeats_the_text(model: str, tmp_path: Path) -> None:
    one, two = (report(model, tmp_path, "--seed=7", "--temperature=1.5") for _ in range(2))
    assert one["text"] == two["text"] and one["generated_tokens"] > 0
    other = report(model, tmp_path, "--seed=8", "--temperature=1.5")
    assert other["text"] != one["text"]
    greedy = {report(model, tmp_path, "--temperature=0", f"--seed={s}")["text"] for s in (1, 2)}
    assert len(greedy) == 1


def test_text_does_not_depend_on_threads_or_instruction_set(model: str, tmp_path: Path) -> None:
    facts = json.loads(
        cli("doctor", "--json", "--no-roofs", home=tmp_path, env={"TEST_FAKE_SESSION": ""}).stdout
    )
    texts = set()
    for isa in facts["engine"]["isas"]:
        for threads in (1, 2):
            result = report(
                model,
                tmp_path,
                "--seed=3",
                "--temperature=1",
                f"--isa={isa}",
                f"--threads={threads}",
            )
            assert (result["isa"], result["n_threads"]) == (isa, threads)
            texts.add(result["text"])
    assert len(texts) == 1


def test_stream_and_json_agree(model: str, tmp_path: Path) -> None:
    from localllm.cli.output import escape

    exact = report(model, tmp_path, "--seed=5")
    shown = run(model, tmp_path, "--raw", "--max-tokens=24", "--seed=5", "abc")
    assert shown.returncode == 0
    expected = escape(exact["text"])
    assert shown.stdout == expected + ("" if exact["text"].endswith("\n") else "\n")


def test_limits(model: str, tmp_path: Path) -> None:
    assert report(model, tmp_path, "--max-tokens=0")["generated_tokens"] == 0
    assert report(model, tmp_path, "--max-tokens=5")["generated_tokens"] <= 5
    done = run(model, tmp_path, "--ctx=16777216", "abc")
    assert done.returncode == 2 and is_error(done.stderr, "16777216", hint="--ctx")
    done = run(model, tmp_path, "--raw", "--ctx=32", "a b c d e f " * 100)
    assert done.returncode == 2 and is_error(done.stderr, "tokens", "32", hint="--ctx")


def test_engine_errors_are_errors_of_the_command(model: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    content = Path(model).read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    done = run(str(cut), tmp_path, "abc")
    assert done.returncode == 1 and is_error(done.stderr, "cut.gguf")


def test_q8_cache(model: str, tmp_path: Path) -> None:
    half, full = (report(model, tmp_path, f"--kv-type={kind}") for kind in ("q8_0", "f16"))
    assert half["kv_type"] == "q8_0" and half["kv_bytes"] < full["kv_bytes"]


@pytest.fixture
def endless(model: str, tmp_path: Path) -> list[str]:
    """A command line that decodes for minutes: the greedy answer of a tiny model has no end."""
    short, long = (b"llama.context_length" + struct.pack("<II", 4, n) for n in (2048, 1 << 17))
    content = Path(model).read_bytes()
    assert content.count(short) == 1
    path = tmp_path / "endless.gguf"
    path.write_bytes(content.replace(short, long))
    options = ["--raw", "--temperature=0", "--max-tokens=1000000"]
    return [sys.executable, str(RUN_CLI), "run", str(path), *options, "abc"]


@pytest.mark.skipif(os.name == "nt", reason="pipes of a shell")
def test_reader_that_leaves_ends_it(endless: list[str], tmp_path: Path) -> None:
    line = f"{shlex.join(endless)} < /dev/null | head -c 5 | wc -c; echo ${{PIPESTATUS[0]}}"
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment(tmp_path, TEST_FAKE_SESSION=""),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["5", "141"], "")
    assert time.monotonic() - began < 30


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_during_decoding(endless: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        endless,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path, TEST_FAKE_SESSION=""),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, b"")
    assert text.endswith(b"\n")
