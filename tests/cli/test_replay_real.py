"""`run`, `replay` and `bench` with the real engine on tiny models."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins.command_line import cli

from localllm.store.answers import Answers

REAL = {"TEST_FAKE_SESSION": ""}


def command(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return cli(*args, home=home, env={**REAL, **env})


@pytest.mark.parametrize(
    ("architecture", "kind", "options"),
    [
        ("llama", "Q4_K", ("--temperature", "1.5", "--seed", "9")),
        ("gemma3", "Q8_0", ("--temperature", "0", "--kv-type", "q8_0")),
        ("qwen3", "F16", ("--top-k", "0", "--repeat-penalty", "1.3", "--stop", "zz")),
    ],
)
def test_an_answer_comes_again(
    tiny: Callable[[str, str], Path],
    tmp_path: Path,
    architecture: str,
    kind: str,
    options: tuple[str, ...],
) -> None:
    path = str(tiny(architecture, kind))
    asked = ("run", path, "--raw", "abc abc", "--max-tokens", "40", "--threads", "2", *options)
    first = command(tmp_path, *asked, "--json")
    assert first.returncode == 0, first.stderr
    (answer,) = Answers(tmp_path / "answers").newest()
    found = json.loads(first.stdout)
    assert answer.text == found["text"] and len(answer.token_ids) == found["generated_tokens"]
    # Other threads and another instruction set: the same bits.
    elsewhere = ("--threads", "1", "--isa", "scalar")
    again = command(tmp_path, "replay", answer.id, *elsewhere, "--json")
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    assert report["identical"] and report["text"] == found["text"]
    assert report["recorded_tokens"] == report["identical_tokens"] == found["generated_tokens"] > 1


def test_a_full_context_ends_the_replay_too(
    tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The context is no part of the fingerprint, and replay has a longer one."""
    path = str(tiny("llama", "F32"))
    args = ("--raw", "abc", "--ctx", "96", "--seed", "4", "--top-k", "0", "--ignore-eos")
    done = command(tmp_path, "run", path, *args, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finish_reason"] == "length"
    (answer,) = Answers(tmp_path / "answers").newest()
    done = command(tmp_path, "replay", answer.id)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"identical: {len(answer.token_ids)} tokens\n"


def test_a_changed_record_is_seen(tiny: Callable[[str, str], Path], tmp_path: Path) -> None:
    """The comparison is with the record, whatever was recorded."""
    import dataclasses

    path = str(tiny("llama", "F32"))
    done = command(tmp_path, "run", path, "--raw", "abc", "--max-tokens", "12", "--seed", "1")
    assert done.returncode == 0, done.stderr
    records = Answers(tmp_path / "answers")
    (answer,) = records.newest()
    tokens = list(answer.token_ids)
    tokens[5] ^= 1
    records.save(dataclasses.replace(answer, token_ids=tuple(tokens)))
    done = command(tmp_path, "replay", answer.id)
    assert done.returncode == 1
    assert f"token 6 of {len(tokens)} is {answer.token_ids[5]}, on record is {tokens[5]}" in (
        done.stderr
    )


def test_no_records_when_they_are_off(tiny: Callable[[str, str], Path], tmp_path: Path) -> None:
    path = str(tiny("llama", "F32"))
    args = ("run", path, "--raw", "abc", "--max-tokens", "4")
    assert command(tmp_path, *args, LOCALLLM_NO_RECORDS="1").returncode == 0
    assert command(tmp_path, *args, "--no-record").returncode == 0
    assert not (tmp_path / "answers").exists()
    assert command(tmp_path, *args).returncode == 0
    assert len(Answers(tmp_path / "answers").newest()) == 1


def test_bench(tiny: Callable[[str, str], Path], tmp_path: Path) -> None:
    path = str(tiny("qwen3", "Q8_0"))
    done = command(tmp_path, "bench", path, "--repetitions", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [test["name"] for test in found["tests"]]
    assert found["complete"]
    assert names == ["prefill 128", "prefill 512", "decode at 0", "decode at 1024"]
    assert found["machine"]["read_gb_per_s"] > 0 and found["machine"]["int8_gop_per_s"] > 0
    for test in found["tests"]:
        speed = test["engines"]["native"]
        assert speed["runs"] == 2 and 0 < speed["min"] <= speed["median"] <= speed["max"]
        assert speed["share_of_roof"] > 0
