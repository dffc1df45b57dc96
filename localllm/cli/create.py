"""`localllm create`: a model made of another one and a Modelfile."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from localllm import paths
from localllm.cli import opening, output
from localllm.cli.origin import of_path, origin_of
from localllm.errors import FileError
from localllm.store import copies, modelfile, wanted
from localllm.store.copies import Origin
from localllm.store.index import Store
from localllm.store.wanted import PathName

_STDIN = "-"


@click.command("create")
@click.argument("name", metavar="NAME")
@click.option(
    "--file",
    "-f",
    "file",
    default="Modelfile",
    show_default=True,
    metavar="FILE",
    type=click.Path(),
    help="The Modelfile, - for stdin.",
)
@click.option("--force", is_flag=True, help="Replace a model that has the name.")
def command(name: str, file: str, force: bool) -> None:
    """Make the model NAME of another one and the settings of a Modelfile.

    FROM names a model (which is pulled if it is not here), a file or a folder; PARAMETER, TEMPLATE,
    SYSTEM, LICENSE and MESSAGE hold over what that model brings along. Weights are shared, not
    copied.
    """
    ref = copies.own_name(name)
    store = Store(paths.current().models)
    copies.require_free(store, ref, force=force)
    parsed = modelfile.parse(_read(file))
    for note in parsed.notes:
        output.note(note)
    folder = Path() if file == _STDIN else Path(file).parent
    origin = copies.with_settings(_base(parsed.base, folder), parsed.settings)
    model = copies.add(store, ref, origin, f"a Modelfile, from {origin.label}")
    output.emit(output.escape_line(f"{model.ref} is ready: {model.path}") + "\n")


def _base(text: str, folder: Path) -> Origin:
    """What FROM names; a path is relative to the Modelfile."""
    name = wanted.parse(text)
    if not isinstance(name, PathName):
        return origin_of(opening.find(text))
    try:
        path = folder / Path(name.path).expanduser()
    except RuntimeError as e:  # ~ without such a user
        raise FileError(f"FROM {text[:200]}: {e}") from e
    origin = of_path(path)
    return dataclasses.replace(origin, label=str(path))


def _read(file: str) -> str:
    try:
        if file == _STDIN:
            data = sys.stdin.buffer.read(modelfile.MAX_BYTES + 1)
        else:
            with Path(file).expanduser().open("rb") as opened:
                data = opened.read(modelfile.MAX_BYTES + 1)
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FileError(f"{file[:200]} is no Modelfile: it is not UTF-8 text") from e
    except (OSError, ValueError, RuntimeError) as e:  # a NUL, ~ without such a user
        reason = getattr(e, "strerror", None) or e
        raise FileError(
            f"cannot read the Modelfile {file[:200]}: {reason}", "Name it with: -f FILE"
        ) from e
