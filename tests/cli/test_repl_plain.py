"""Conversations without a line editor: pipes, simple terminals, screen readers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import RUN_CLI, cli, environment, is_error
from stand_ins.conditions import wait


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def test_lines_are_turns(model: str, tmp_path: Path) -> None:
    text = b'/system Be brief.\nsay one\n"""\nline\n/bye\n"""\n\n/bye\nnever\n'
    done = cli("run", "--plain", model, home=tmp_path, stdin=text)
    assert done.returncode == 0, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert (first, rest) == ("one", [])
    assert json.loads(second)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "say one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "line\n/bye"},
    ]
    assert re.fullmatch(
        r"The instructions hold from now on\.\n7 prompt.*\n\d+ of .*\n",
        done.stderr.replace("16 prompt tokens", "7 prompt tokens"),
    ), done.stderr


def test_reasoning_is_announced(model: str, tmp_path: Path) -> None:
    text = b"reason hm|so\n/think show\nreason hm|so\n"
    done = cli("run", "--plain", model, home=tmp_path, stdin=text)
    assert done.stdout == "so\nso\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "thinking" and lines[1].startswith("thought for ") and lines[2] == "answer:"
    assert lines[4] == "hm"  # /think show: the last one
    assert lines[5:7] == ["thinking", "hm"] and lines[8] == "answer:"


def test_failures_are_seen_in_the_exit_code(model: str, tmp_path: Path) -> None:
    done = cli(
        "run", "--plain", model, home=tmp_path, stdin=b"fail\n/zzz\n/edit\n/set history\nsay on\n"
    )
    assert (done.returncode, done.stdout) == (1, "on\n")
    assert done.stderr.count("error: ") == 4 and "is kept" not in done.stderr
    done = cli("run", "--plain", model, home=tmp_path, stdin=b"a\xffb\nsay on\n")
    assert (done.returncode, done.stdout) == (1, "on\n")
    assert "not UTF-8: byte 0xff at position 1" in done.stderr


def test_names_that_cannot_be(model: str, tmp_path: Path) -> None:
    words = ("/", "./", "~nouser/x", "./a\0b", "./" + "x" * 300)
    lines = ["say x", *(f"/{verb} {word}" for verb in ("save", "load") for word in words)]
    stdin = "\n".join(lines).encode()
    done = cli("run", "--plain", model, home=tmp_path, stdin=stdin)
    assert done.returncode == 1 and done.stderr.count("error: ") == 2 * len(words)
    assert "internal error" not in done.stderr


def test_long_lines(model: str, tmp_path: Path) -> None:
    whole = b"digest " + b"x" * 1_000_000
    done = cli("run", "--plain", model, home=tmp_path, stdin=whole + b"\n")
    assert done.returncode == 0 and done.stdout.startswith("1000000 ")
    stdin = b"y" * (16 * 2**20 + 5) + b"\nsay on\n"
    done = cli("run", "--plain", model, home=tmp_path, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, "on\n")
    assert "16,777,216 bytes" in done.stderr


def test_pipe_without_plain_is_one_prompt(model: str, tmp_path: Path) -> None:
    done = cli("run", model, home=tmp_path, stdin=b"say one\nsay two\n")
    assert done.stdout == "one\nsay two\n"


def test_a_prompt_with_plain_is_one_answer(model: str, tmp_path: Path) -> None:
    done = cli("run", "--plain", model, "say one", home=tmp_path, stdin=b"")
    assert (done.stdout, done.stderr) == ("one\n", "")


@pytest.mark.skipif(os.name == "nt", reason="pipes of a shell")
def test_broken_pipe_and_closed_stdout(model: str, tmp_path: Path) -> None:
    command = f'"{sys.executable}" "{RUN_CLI}" run --plain "{model}"'
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f"yes 'lines 50000' | {command} | head -1; echo ${{PIPESTATUS[1]}}"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("line 0\n141\n", "")
    assert time.monotonic() - began < 15
    done = subprocess.run(
        ["bash", "-c", f"echo 'say x' | {command} >&-"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and is_error(done.stderr, "stdout is closed")
    if Path("/dev/full").exists():
        done = subprocess.run(
            ["bash", "-c", f"yes 'say x' | {command} > /dev/full"],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert is_error(done.stderr, "No space left") and done.stderr.count("error: ") == 1


def test_closed_stdin(model: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" "{RUN_CLI}" run --plain "{model}" <&-'],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("words", "env"), [(["--plain"], {}), ([], {"TERM": "dumb"})])
def test_plain_terminal(model: str, tmp_path: Path, words: list[str], env: dict[str, str]) -> None:
    pexpect = pytest.importorskip("pexpect")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/fail/digest/ "$1"\n')
    editor.chmod(0o755)
    env = {"TERM": "xterm", "EDITOR": str(editor), "VISUAL": "", **env}
    child = pexpect.spawn(
        sys.executable,
        [str(RUN_CLI), "run", *words, model],
        env=environment(tmp_path, **env),
        encoding="utf-8",
        timeout=20,
    )
    child.delaybeforesend = 0
    pieces = []

    def prompt() -> str:
        child.expect("(?:^|\n)> ")
        pieces.append(child.before)
        return str(child.before)

    def turn(text: str) -> str:
        child.sendline(text)
        return prompt()

    prompt()
    assert re.search("thinking\r\nthought for .*\r\nanswer:\r\ndone\r\n", turn("think 100"))
    assert "/edit brings it back" in turn("fail 12")
    assert "digest 12\r\n2 " in turn("/edit")
    child.sendline("count 100000")
    child.expect(" 5 6 ")
    child.sendintr()
    assert "stopped, what is there stays" in prompt()
    child.sendline("prefill 60")
    wait((tmp_path / "busy").exists)
    child.sendintr()
    assert "before anything came" in prompt()
    child.sendline('"""one')
    child.expect("\\. ")
    answer = turn('two"""')
    assert json.loads(answer[answer.index("{") : answer.rindex("}") + 1])["messages"][-1] == {
        "role": "user", "content": "one\ntwo",
    }  # fmt: skip
    child.sendintr()
    prompt()
    child.sendintr()
    assert "To leave: /bye" in prompt()
    child.sendeof()
    child.expect(pexpect.EOF)
    seen = "".join(pieces) + child.before
    child.close()
    assert child.exitstatus == 0
    assert "\x1b" not in seen and "Traceback" not in seen
    assert "reading the prompt" not in seen and "thinking…" not in seen
