"""Runs command lines as programs, and judges what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from localllm.cli.main import cli as group
from stand_ins import fork_server

ROOT = Path(__file__).resolve().parents[2]
RUN_CLI = ROOT / "tests" / "stand_ins" / "run_cli.py"


def root() -> click.Context:
    """Of a whole command line, as the program makes it. A command keeps the names of the help
    option that its first context has, for all tests of the process."""
    return click.Context(group, info_name="localllm", **group.context_settings)


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a command: its own home, the fake session, no index."""
    kept = {k: v for k, v in os.environ.items() if k not in ("LOCALLLM_ISA", "PYTHONPATH")}
    return {
        **kept,
        "LOCALLLM_HOME": str(home),
        "TEST_FAKE_SESSION": "1",
        "PYTHONPATH": str(ROOT),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        **more,
    }


def cli(
    *args: str | bytes, home: Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command line with the fake session and its own home: in a fork where that is the same,
    else in a new process."""
    full = environment(home, **(env or {}))
    if fork_server.can_run(args, stdin, full):
        texts = [str(arg) for arg in args]
        code, out, err = fork_server.run(texts, stdin, full, 60)
        return subprocess.CompletedProcess(texts, code, out.decode(), err.decode())
    done = subprocess.run(
        [sys.executable, str(RUN_CLI), *args],
        input=stdin,
        capture_output=True,
        env=full,
        timeout=60,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def complete(home: Path, words: str, shell: str = "bash") -> list[str]:
    """What the Tab key offers after `words`."""
    done = subprocess.run(
        [sys.executable, str(RUN_CLI)],
        env=environment(
            home,
            _LOCALLLM_COMPLETE=f"{shell}_complete",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split(" ")) - 1),
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def is_error(text: str, *parts: str, hint: str | None = None) -> bool:
    """Whether stderr ends with one well-formed error that holds all parts."""
    start = text.rfind("\nerror: ") + 1 if not text.startswith("error: ") else 0
    message, _, rest = text[start:].partition("\n")
    assert message.startswith("error: "), text
    assert "Traceback" not in text, text
    assert all(part in text[start:] for part in parts), (parts, text)
    if hint is not None:
        assert rest.startswith("\nhint: ") and hint in rest, text
    return True
