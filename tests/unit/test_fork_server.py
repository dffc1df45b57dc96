"""A command in a fork does what it does as a process of its own, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import fork_server, small_models
from stand_ins.command_line import RUN_CLI, cli, environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (("list", "--all"), b""),
        (("show", "nobody"), b""),
        (("run", "./m.gguf", "say \\xe9\\x1b"), b""),
        (("run", "./m.gguf"), b"say from stdin"),
        (("run", "./m.gguf", "crash"), b""),
        (("cp",), b""),
    ],
)
def test_the_same_as_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], stdin: bytes
) -> None:
    (tmp_path / "m.gguf").write_bytes(small_models.gguf())
    monkeypatch.chdir(tmp_path)
    env = environment(tmp_path)
    assert fork_server.can_run(args, stdin, env)
    process = subprocess.run(
        [sys.executable, str(RUN_CLI), *args], input=stdin, env=env, capture_output=True,
        check=False,
    )  # fmt: skip
    code, out, err = fork_server.run(list(args), stdin, env, 60)
    assert (code, out, err) == (process.returncode, process.stdout, process.stderr)


def test_every_command_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    first = cli("run", str(path), "--plain", "say one", home=tmp_path, env={"NO_COLOR": "1"})
    again = cli("run", str(path), "say two", home=tmp_path / "other")
    assert (first.stdout, again.stdout) == ("one\n", "two\n")
    assert (tmp_path / "answers").is_dir() and (tmp_path / "other" / "answers").is_dir()


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    env = environment(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(["run", str(path), "block 30"], b"", env, 0.3)
    assert cli("list", home=tmp_path).returncode == 0


def test_what_only_a_process_can_do(tmp_path: Path) -> None:
    usual = environment(tmp_path)
    assert fork_server.can_run(("list",), b"", usual)
    for key in ("PYTHONPROFILEIMPORTTIME", "LC_ALL"):
        assert not fork_server.can_run(("list",), b"", {**usual, key: "1x"})
    assert not fork_server.can_run(("list",), b"", {**usual, "TEST_FAKE_SESSION": ""})
    assert not fork_server.can_run(("list",), b"x" * 100_000, usual)
    assert not fork_server.can_run((b"list",), b"", usual)
    assert not fork_server.can_run(("run", "\udcff"), b"", usual)
