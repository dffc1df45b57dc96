"""`localllm rm`: delete models from this machine."""

from __future__ import annotations

import sys

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.options import ModelName
from localllm.errors import ArgumentError
from localllm.store import catalog, download, ref
from localllm.store.index import Store


@click.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=ModelName())
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(names: tuple[str, ...], yes: bool) -> None:
    """Delete models, and the parts of interrupted downloads of them."""
    known = catalog.load()
    places = paths.current()
    store = Store(places.models)
    everything = [model.ref for model in store.list()]
    doomed = []
    for name in names:
        wanted = ref.parse(name)
        model = store.find(wanted) or store.find(known.canonical(wanted))
        entry = known.find(wanted)
        cached = download.cached_bytes(entry, places.downloads) if entry else 0
        if model is None and not cached:
            raise catalog.UnknownModelError(
                f"{wanted} is not on this machine",
                catalog.suggestion(wanted, everything) or "See: localllm list",
            )
        label = str(model.ref if model else entry.ref if entry else wanted)
        doomed.append((label, model, entry, (model.size if model else 0) + cached))
    if not yes:
        _ask([f"{label} ({output.size_text(size)})" for label, _, _, size in doomed])
    for label, model, entry, size in doomed:
        if model is not None:
            store.remove(model)
        if entry is not None:
            download.forget_parts(entry, places.downloads)
        output.emit(f"{label} deleted, {output.size_text(size)} freed\n")


def _ask(what: list[str]) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ArgumentError(
            f"nobody is there to confirm that {', '.join(what)} may be deleted",
            "Add --yes to delete without asking.",
        )
    if not click.confirm(f"Delete {', '.join(what)}?", err=True):
        raise click.Abort
