"""`localllm completion`: the Tab key for bash, zsh and fish."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from localllm.cli import output
from localllm.errors import FileError

PROGRAM = "localllm"
COMPLETE_VARIABLE = "_LOCALLLM_COMPLETE"


@dataclass(frozen=True)
class Shell:
    """Where a shell looks for completions of one user: a variable that names a folder, what holds
    if it is not set (below the home folder), the file below, and what else has to be done."""

    variable: str
    default: str
    file: str
    package_file: str  # below share/, where a system package puts it
    note: str


SHELLS = {
    "bash": Shell(
        "XDG_DATA_HOME",
        ".local/share",
        f"bash-completion/completions/{PROGRAM}",
        f"bash-completion/completions/{PROGRAM}",
        "It works in new shells where the package bash-completion is installed. Without it, add "
        "this line to ~/.bashrc:\n\n  . {path}",
    ),
    "zsh": Shell(
        "XDG_DATA_HOME",
        ".local/share",
        f"zsh/site-functions/_{PROGRAM}",
        f"zsh/site-functions/_{PROGRAM}",
        "Add these lines to ~/.zshrc, before any other compinit:\n\n"
        "  fpath=({folder} $fpath)\n  autoload -Uz compinit && compinit",
    ),
    "fish": Shell(
        "XDG_CONFIG_HOME",
        ".config",
        f"fish/completions/{PROGRAM}.fish",
        f"fish/vendor_completions.d/{PROGRAM}.fish",
        "It works in new shells.",
    ),
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.option("--install", is_flag=True, help="Write the script where the shell looks for it.")
@click.pass_context
def command(ctx: click.Context, shell: str, install: bool) -> None:
    """Print the script that completes commands, options, model names and ids in SHELL.

    --install writes it to a file of your own, says which one, and changes no other file.
    """
    text = script(ctx.find_root().command, shell)
    if not install:
        output.emit(text)
        return
    path = install_path(shell)
    _write(path, text, shell)
    note = SHELLS[shell].note.format(path=_quoted(path), folder=_quoted(path.parent))
    output.emit(output.escape(f"{path} written. {note}\n"))


def script(command_line: click.Command, shell: str) -> str:
    """The script that asks the program itself for completions, as click writes it."""
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    completion = kind(command_line, {}, PROGRAM, COMPLETE_VARIABLE)
    # Not source(): that looks for the shell on this machine first.
    return (completion.source_template % completion.source_vars()).lstrip("\n").rstrip() + "\n"


def install_path(shell: str) -> Path:
    """The file of this user. Raises `FileError` without a home folder."""
    row = SHELLS[shell]
    base = Path(os.environ.get(row.variable) or "")
    if not base.is_absolute():
        try:
            base = Path.home() / row.default
        except RuntimeError as e:
            raise FileError(
                "this user has no home folder (HOME is not set)",
                f"Print the script instead: localllm completion {shell}",
            ) from e
    return base / row.file


def _write(path: Path, text: str, shell: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    except OSError as e:
        raise FileError(
            f"cannot write {path}: {e.strerror or e}",
            f"Print the script and put it where you like: localllm completion {shell}",
        ) from e


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
