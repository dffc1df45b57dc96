"""`localllm rm`: delete models from this machine."""

from __future__ import annotations

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.confirm import confirm_deletion
from localllm.cli.options import ModelName
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
        sizes = [f"{label} ({output.size_text(size)})" for label, _, _, size in doomed]
        confirm_deletion(", ".join(sizes))
    for label, model, entry, size in doomed:
        if model is not None:
            store.remove(model)
        if entry is not None:
            download.forget_parts(entry, places.downloads)
        output.emit(f"{label} deleted, {output.size_text(size)} freed\n")
