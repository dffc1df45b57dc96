"""`localllm cp`: the same model under another name."""

from __future__ import annotations

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.finding import find_model
from localllm.cli.options import ModelName
from localllm.cli.origin import origin_of
from localllm.store import copies
from localllm.store.index import Store


@click.command("cp")
@click.argument("source", metavar="SRC", type=ModelName())
@click.argument("target", metavar="DST")
@click.option("--force", is_flag=True, help="Replace a model that has the name DST.")
def command(source: str, target: str, force: bool) -> None:
    """Give the model SRC a second name, DST.

    The file is shared, so the copy takes no space; deleting one name keeps the other. SRC may be a
    model of another program or a file as well.
    """
    ref = copies.own_name(target)
    store = Store(paths.current().models)
    origin = origin_of(find_model(source, may_pull=False))
    copies.require_free(store, ref, force=force)
    model = copies.add(store, ref, origin, f"a copy of {origin.label}")
    output.emit(output.escape_line(f"{model.ref} is ready: {model.path}") + "\n")
