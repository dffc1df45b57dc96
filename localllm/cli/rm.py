"""`localllm rm`: delete models from this machine."""

from __future__ import annotations

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.confirm import confirm_deletion
from localllm.cli.finding import sound_catalogue
from localllm.cli.options import ModelName
from localllm.store import removal


@click.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=ModelName())
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(names: tuple[str, ...], yes: bool) -> None:
    """Delete models, and the parts of interrupted downloads of them, and computed conversations.

    NAME is the whole name with its size, as `localllm list` shows it or as the model was pulled by.
    Files that were imported in place stay where they are, and a file that another name shares stays
    for that one. Models of other programs are never deleted.
    """
    known = sound_catalogue()
    places = paths.current()
    doomed = removal.doomed(names, known, places)
    if not yes:
        sizes = [f"{each.label} ({output.size_text(each.size)})" for each in doomed]
        confirm_deletion(", ".join(sizes))

    def gone(each: removal.Doomed) -> None:
        output.emit(f"{each.label} deleted, {output.size_text(each.size)} freed\n")

    for path in removal.remove(doomed, places, gone):
        output.say(output.escape_line(f"Its file stays where it is: {path}"))
