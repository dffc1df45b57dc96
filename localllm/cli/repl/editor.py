"""`/edit`: a text is written in the user's own editor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.cli import output
from localllm.cli.interrupt import Interrupts
from localllm.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from localllm.cli.repl.loop import Repl

_USUAL = ("nano", "vi", "notepad")


def edit(repl: Repl, argument: str) -> None:
    """Opens the editor on a text, or on one that could not be sent, and sends what comes back."""
    if not repl.reader.interactive:
        raise ArgumentError("/edit needs a terminal")
    text = written(argument or repl.unsent)
    if not text.strip():
        output.say(output.dim("The text is empty: nothing was sent."))
        return
    output.emit(output.escape(text) + "\n")
    repl.ask(text)


def written(text: str) -> str:
    """What the editor made of a text. Raises `FileError` if it cannot be started or fails."""
    command = _command()
    # Made with the mode 0600.
    descriptor, name = tempfile.mkstemp(prefix="localllm-", suffix=".md")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        with Interrupts(lambda: None, ends=False):  # Ctrl-C is for the editor
            code = subprocess.run([*command, name], check=False).returncode
        if code:
            raise FileError(f"the editor {command[0]} ended with exit code {code}")
        return path.read_bytes().decode("utf-8").strip("\n")
    except OSError as e:
        raise FileError(
            f"cannot start the editor {command[0]}: {e.strerror or e}", "Set EDITOR to another."
        ) from e
    except UnicodeDecodeError as e:
        raise ArgumentError("the edited text is not UTF-8") from e
    finally:
        path.unlink(missing_ok=True)


def _command() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if chosen:
        try:
            if words := shlex.split(chosen, posix=os.name != "nt"):
                return words
        except ValueError as e:
            raise ArgumentError(f"EDITOR cannot be understood: {chosen[:80]!a}: {e}") from e
    for name in _USUAL:
        if shutil.which(name):
            return [name]
    raise FileError("no editor is known", "Set EDITOR to one, such as nano.")
