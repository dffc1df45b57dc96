"""`localllm import`: a file or a folder of this machine under a name of the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.origin import of_offer
from localllm.errors import ArgumentError, FileError
from localllm.paths import ensure
from localllm.store import copies
from localllm.store.index import Store
from localllm.store.sources import local


@click.command("import")
@click.argument("path", metavar="PATH", type=click.Path())
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--copy", "copies_file", is_flag=True, help="Copy the files into the store.")
@click.option("--move", "moves_file", is_flag=True, help="Move the files into the store.")
@click.option("--force", is_flag=True, help="Replace a model that has the name.")
def command(path: str, name: str | None, copies_file: bool, moves_file: bool, force: bool) -> None:
    """Give a GGUF file, or a folder with one model, a name.

    The files stay where they are, unless they are copied or moved. Of a split model PATH is its
    folder or any of its files. Without NAME it is called after the file.
    """
    if copies_file and moves_file:
        raise ArgumentError("--copy and --move exclude each other")
    wanted_name = None if name is None else copies.own_name(name)
    places = paths.current()
    store = Store(places.models)
    try:
        source = Path(path).expanduser()
        if not source.exists():
            raise FileError(f"there is no file {path[:200]}", "Check the path.")
    except (OSError, ValueError, RuntimeError) as e:  # too long, a NUL, ~ without such a user
        raise FileError(f"cannot open {path[:200]}: {getattr(e, 'strerror', None) or e}") from e
    offer = local.resolve(source, wanted_name)
    if any(_is_in(file, places.models) for file in offer.in_place):
        raise ArgumentError(
            f"{path[:200]} is in the store already",
            "To give it another name: localllm cp SRC DST. See: localllm list",
        )
    origin = of_offer(offer)  # checks the header
    copies.require_free(store, offer.ref, force=force)
    if copies_file or moves_file:
        ensure(places.models)
        line = output.ProgressLine()

        def show(done: int, total: int) -> None:
            line.draw(f"copying {offer.ref}  {output.size_text(done)} of {output.size_text(total)}")

        try:
            model = copies.copy(store, offer.ref, origin, show, move=moves_file)
        finally:
            line.clear()
    else:
        # Where the files lie must hold wherever localllm is called from.
        origin = dataclasses.replace(origin, files=tuple(f.absolute() for f in origin.files))
        model = copies.add(store, offer.ref, origin, f"{copies.KIND}: {origin.label}")
    output.emit(
        output.escape_line(f"{model.ref} is ready: {model.path} ({output.size_text(model.size)})")
        + "\n"
    )


def _is_in(path: Path, folder: Path) -> bool:
    return path.parent.resolve().is_relative_to(folder.resolve())
