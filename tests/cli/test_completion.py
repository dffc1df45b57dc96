"""The Tab key: the scripts, where they go, and what they offer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import RUN_CLI, cli, complete, environment, is_error

from localllm.cli.completion import SHELLS


@pytest.mark.parametrize("shell", SHELLS)
def test_script(tmp_path: Path, shell: str) -> None:
    done = cli("completion", shell, home=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert f"_LOCALLLM_COMPLETE={shell}_complete" in done.stdout
    assert done.stdout.endswith("\n") and not done.stdout.startswith("\n")
    # The old way, which people may have in their start-up files.
    old = cli(home=tmp_path, env={"_LOCALLLM_COMPLETE": f"{shell}_source"})
    assert "_LOCALLLM_COMPLETE" in old.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_reads_the_script(tmp_path: Path, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell}")
    script = tmp_path / "script"
    script.write_text(cli("completion", shell, home=tmp_path).stdout)
    done = subprocess.run([path, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes(tmp_path: Path) -> None:
    """The script, the program and the shell together."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "localllm"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{RUN_CLI}" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [
            "bash", "-c",
            'eval "$(localllm completion bash)"; COMP_WORDS=(localllm sho); COMP_CWORD=1; '
            "_localllm_completion localllm; echo ${COMPREPLY[@]}",
        ],
        env=environment(tmp_path, PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "show\n", done.stderr


def test_offers_commands_without_loading_them(tmp_path: Path) -> None:
    from localllm.cli.main import COMMANDS

    assert complete(tmp_path, "localllm ") == [f"plain,{name}" for name in COMMANDS]
    assert complete(tmp_path, "localllm co") == ["plain,completion"]
    assert complete(tmp_path, "localllm help be") == ["plain,bench"]
    described = complete(tmp_path, "localllm li", "zsh")
    assert described == ["plain", "list", COMMANDS["list"].help]
    loaded = (
        "import sys; from localllm.cli.main import main; main(['li']); "
        "assert not [m for m in sys.modules if m.startswith('localllm.cli.') "
        "and m.rpartition('.')[2] not in ('main', 'output')], sorted(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", loaded],
        env=environment(
            tmp_path, _LOCALLLM_COMPLETE="bash_complete", COMP_WORDS="localllm l", COMP_CWORD="1"
        ),
        capture_output=True,
        check=True,
    )


def test_offers_options_of_every_command() -> None:
    import click
    from click.shell_completion import BashComplete

    from localllm.cli.main import COMMANDS
    from localllm.cli.main import cli as group

    completion = BashComplete(group, {}, "localllm", "_LOCALLLM_COMPLETE")
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        options = {
            option
            for param in command.params
            if isinstance(param, click.Option) and not param.hidden
            for option in [*param.opts, *param.secondary_opts]
            if option.startswith("--")
        }
        assert options <= {item.value for item in completion.get_completions([name], "--")}


def test_offers_values(tmp_path: Path) -> None:
    assert complete(tmp_path, "localllm completion z") == ["plain,zsh"]
    assert complete(tmp_path, "localllm bench x --engine l") == ["plain,llama.cpp"]


def test_offers_models(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine.gguf").write_bytes(small_models.gguf())
    (models / "\x1b[31m.gguf").write_bytes(small_models.gguf())
    for command in ("run", "bench"):
        assert complete(tmp_path, f"localllm {command} min") == ["plain,mine"]
    assert complete(tmp_path, "localllm pull smollm2:1") == [
        "plain,smollm2:1.7b",
        "plain,smollm2:135m",
    ]
    assert complete(tmp_path, "localllm replay abcd --model min") == ["plain,mine"]
    assert complete(tmp_path, "localllm run ./m") == ["file,./m"]


def test_no_store_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    assert complete(tmp_path, "localllm run x") == [""]
    assert complete(tmp_path, "localllm replay ") == [""]


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", "data/bash-completion/completions/localllm"),
        ("zsh", "data/zsh/site-functions/_localllm"),
        ("fish", "config/fish/completions/localllm.fish"),
    ],
)
def test_install_says_what_it_wrote(tmp_path: Path, shell: str, file: str) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    path = tmp_path / file
    for _ in range(2):  # a second time it is written again
        done = cli(
            "completion", shell, "--install", home=tmp_path, env={"HOME": str(tmp_path), **env}
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{path} written. ")
        assert path.read_text() == cli("completion", shell, home=tmp_path).stdout
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {file}  # no start-up file was touched
    if shell == "zsh":
        assert f"fpath=({path.parent} $fpath)" in done.stdout


def test_install_goes_below_the_home_folder(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": "relative"}
    done = cli("completion", "bash", "--install", home=tmp_path, env=env)
    path = tmp_path / ".local" / "share" / "bash-completion" / "completions" / "localllm"
    assert done.returncode == 0 and path.exists()


def test_install_that_cannot_write(tmp_path: Path) -> None:
    (tmp_path / ".local").write_text("a file")
    done = cli("completion", "bash", "--install", home=tmp_path,
               env={"HOME": str(tmp_path), "XDG_DATA_HOME": ""})  # fmt: skip
    assert done.returncode == 1
    assert is_error(done.stderr, "cannot write", hint="localllm completion bash")


def test_other_shells_are_refused(tmp_path: Path) -> None:
    done = cli("completion", "tcsh", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "tcsh")
    done = cli("completion", home=tmp_path)
    assert is_error(done.stderr, "Choose from: bash, zsh, fish", hint="localllm completion --help")
