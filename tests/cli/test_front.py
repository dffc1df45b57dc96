"""The front of the command line: help, start-up cost, errors, exit codes, streams."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import ROOT, RUN_CLI, cli, is_error


@pytest.mark.parametrize("args", [("--help",), ("-h",), ()])
def test_help_names_every_command(tmp_path: Path, args: tuple[str, ...]) -> None:
    from localllm.cli.main import COMMANDS

    done = cli(*args, home=tmp_path)
    assert done.returncode == 0
    for name, row in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert row.help in done.stdout


def test_every_command_has_its_own_help(tmp_path: Path) -> None:
    from localllm.cli.main import COMMANDS

    for name in COMMANDS:
        done = cli(name, "--help", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Usage: localllm {name} ")


def test_table_rows_name_real_commands() -> None:
    import click

    from localllm.cli.main import COMMANDS, cli

    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None and command.name == name


def test_version(tmp_path: Path) -> None:
    from localllm import __version__

    assert cli("--version", home=tmp_path).stdout == f"localllm {__version__}\n"


#: What no quick command may import: each costs tens of milliseconds.
HEAVY = {
    "numpy",
    "cffi",
    "_cffi_backend",
    "jinja2",
    "tokenizers",
    "prompt_toolkit",
    "llama_cpp",
    "huggingface_hub",
    "matplotlib",
    "psutil",
    "importlib.metadata",
    "asyncio",
    "localllm.session",
    "localllm.native",
}

#: How many modules a quick command may load beyond those of `import click`. With Python 3.11 they
#: were 24, 71, 71, 50, 72, 23, 59 and 14.
QUICK = {
    ("--help",): 35,
    ("list",): 85,
    ("list", "--json"): 85,
    ("help",): 65,
    ("help", "run"): 95,
    ("completion", "bash"): 35,
    ("replay", "--list"): 75,
    ("--version",): 25,
}


def modules_after(*args: str, home: Path) -> set[str]:
    """The modules that a command line has loaded at its end."""
    code = (
        "import sys; from localllm.cli.main import main; code = main(sys.argv[1:]); "
        "print('\\n', *sorted(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=ROOT,
        env={**os.environ, "LOCALLLM_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture(scope="module")
def bare() -> set[str]:
    """The modules of an interpreter that has imported click."""
    done = subprocess.run(
        [sys.executable, "-c", "import click, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_help_imports_almost_nothing(tmp_path: Path) -> None:
    names = modules_after("--help", home=tmp_path)
    assert {name for name in names if name.startswith("localllm")} == {
        "localllm",
        "localllm.cli",
        "localllm.cli.main",
        "localllm.cli.output",
        "localllm.errors",
        "localllm.plain_text",
    }


@pytest.mark.parametrize("args", QUICK, ids=" ".join)
def test_quick_commands_import_little(
    tmp_path: Path, bare: set[str], args: tuple[str, ...]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine.gguf").write_bytes(small_models.gguf())
    names = modules_after(*args, home=tmp_path)
    assert not HEAVY & names
    assert len(names - bare) <= QUICK[args], sorted(names - bare)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not add up the times of children")
@pytest.mark.parametrize("args", [("--help",), ("list",), ("help", "run")], ids=" ".join)
def test_quick_commands_are_quick(
    tmp_path: Path, args: tuple[str, ...], figures: Callable[[str], None]
) -> None:
    """150 ms of CPU time on a quiet machine; the margin is for slow ones. The imports are counted
    above."""
    before = os.times()
    assert cli(*args, home=tmp_path, env={"TEST_FAKE_SESSION": ""}).returncode == 0
    after = os.times()
    seconds = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    assert seconds > 0  # a process of its own
    figures(f"localllm {' '.join(args)}: {seconds * 1000:.0f} ms of CPU time to the end")
    assert seconds <= 5 * 0.15


def test_unknown_command_suggests(tmp_path: Path) -> None:
    done = cli("pul", "x", home=tmp_path)
    assert done.returncode == 2
    assert is_error(done.stderr, "no command 'pul'", hint="Did you mean pull?")
    done = cli("zzzzzz", home=tmp_path)
    assert is_error(done.stderr, "zzzzzz", hint="localllm --help")


def test_unknown_option_suggests(tmp_path: Path) -> None:
    done = cli("run", "--temprature", "1", "x", home=tmp_path)
    assert done.returncode == 2
    assert is_error(done.stderr, "--temprature", hint="--temperature")


def test_missing_argument(tmp_path: Path) -> None:
    done = cli("show", home=tmp_path)
    assert done.returncode == 2
    assert is_error(done.stderr, "NAME|PATH", hint="localllm show --help")


def test_unknown_command_is_shown_escaped(tmp_path: Path) -> None:
    done = cli("\x1b]0;owned\x07", home=tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr and "\\x1b]0;owned" in done.stderr


def test_internal_error_has_no_traceback_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x")
    model = str(tmp_path / "m.gguf")
    done = cli("run", model, "crash", home=tmp_path)
    assert done.returncode == 1
    assert is_error(
        done.stderr, "internal error: RuntimeError: a fault of ours", hint="LOCALLLM_DEBUG"
    )
    done = cli("run", model, "crash", home=tmp_path, env={"LOCALLLM_DEBUG": "1"})
    assert "Traceback" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [("--help",), ("list", "--json"), ("doctor",)])
def test_full_disk_behind_stdout(tmp_path: Path, args: tuple[str, ...]) -> None:
    env = {**os.environ, "LOCALLLM_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, str(RUN_CLI), *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**env, "TEST_FAKE_SESSION": "1"},
            check=False,
        )
    assert done.returncode == 1
    assert is_error(done.stderr, "No space left on device")
    assert done.stderr.count("error") == 1


@pytest.mark.skipif(os.name == "nt", reason="a shell closes descriptors")
def test_closed_streams(tmp_path: Path) -> None:
    base = (
        f'LOCALLLM_HOME="{tmp_path}" PYTHONPATH="{ROOT}" "{sys.executable}" "{RUN_CLI}" list --json'
    )
    done = subprocess.run(["sh", "-c", f"{base} >&-"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and is_error(done.stderr, "stdout is closed")
    done = subprocess.run(["sh", "-c", f"{base} 2>&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    done = subprocess.run(["sh", "-c", f"{base} <&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes of a shell")
def test_broken_pipe_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x")
    line = (
        f'LOCALLLM_HOME="{tmp_path}" PYTHONPATH="{ROOT}" TEST_FAKE_SESSION=1 '
        f'"{sys.executable}" "{RUN_CLI}" run "{tmp_path}/m.gguf" "count 10000" < /dev/null'
    )
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f'{line} | head -c 5; echo " ${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0 1 2 141\n"
    assert done.stderr == ""
    assert time.monotonic() - began < 15  # all of them take 20 s


def test_ctrl_c_while_the_program_starts_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "localllm", "list"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ascii_terminal(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x")
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = cli("run", str(tmp_path / "m.gguf"), "say caf\\xe9", home=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "caf\\xe9\n")
