"""`localllm list`: the models on this machine."""

from __future__ import annotations

import datetime
import json
import textwrap
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.table import Column, render, screen_width
from localllm.store import catalog, download
from localllm.store.architecture import engine_of, read_architecture
from localllm.store.index import Model, Store

_COLUMNS = (
    Column("NAME"),
    Column("SIZE", right=True),
    Column("QUANTIZATION"),
    Column("ARCHITECTURE"),
    Column("ENGINE"),
    Column("STATE"),
)


@click.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also what can be pulled.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(show_all: bool, as_json: bool) -> None:
    """List the models on this machine, and downloads that were interrupted.

    ENGINE is what runs a model's architecture: native is our own, llama.cpp needs the extra
    localllm[compat].
    """
    places = paths.current()
    models = Store(places.models).list()
    here = {model.ref for model in models}
    known = catalog.load()
    rows = [_installed(model) for model in models]
    for entry in known:
        if entry.ref in here:
            continue
        cached = download.cached_bytes(entry, places.downloads)
        if cached or show_all:
            rows.append(_absent(entry, cached))
    if as_json:
        output.emit(json.dumps(rows) + "\n")
        return
    for model in models:
        if model.problem:
            output.say(f"note: {output.escape_line(f'{model.ref}: {model.problem}')}")
    if rows:
        output.emit(render(_COLUMNS, [_cells(row) for row in rows], screen_width()))
    else:
        _teach(known)


def _teach(known: catalog.Catalog) -> None:
    """What to do with an empty store. On stderr: there is no model to print."""
    output.say("No models yet. Bring one here with:\n")
    for entry in known:
        output.say(output.escape_line(f"  localllm pull {entry.ref}"))
        what = f"{entry.description}, {output.size_text(entry.download_size)}"
        output.say(
            textwrap.fill(
                output.escape_line(what), 72, initial_indent=" " * 6, subsequent_indent=" " * 6
            )
        )
    output.say("\n`localllm run NAME` does it by itself. A GGUF file of your own runs as it is:\n")
    output.say("  localllm run ./model.gguf")


def _installed(model: Model) -> dict[str, Any]:
    record = model.record
    architecture = (record.architecture if record else "") or read_architecture(model.path)
    return {
        "name": str(model.ref),
        "state": "damaged" if model.damaged else "ready",
        "size": model.size,
        "quantization": record.quantization if record else None,
        "architecture": architecture or None,
        "engine": engine_of(architecture),
        "digest": record.digest if record else None,
        "modified": datetime.datetime.fromtimestamp(
            model.modified, datetime.timezone.utc
        ).isoformat(timespec="seconds"),
        "path": str(model.path),
        "licence": record.licence if record else None,
    }


def _absent(entry: catalog.Entry, cached: int) -> dict[str, Any]:
    return {
        "name": str(entry.ref),
        "state": "partial" if cached else "available",
        "size": entry.size,
        "quantization": entry.quantization,
        "architecture": entry.architecture,
        "engine": engine_of(entry.architecture),
        "digest": f"sha256:{entry.sha256}",
        "download_size": entry.download_size,
        "downloaded": cached,
        "licence": entry.licence,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    state = row["state"]
    if state == "partial":
        done, total = row["downloaded"], row["download_size"]
        state = f"partial, {output.size_text(done)} of {output.size_text(total)} downloaded"
    elif state == "available":
        state = f"not here, {output.size_text(row['download_size'])} to download"
    texts = [row[key] or "-" for key in ("quantization", "architecture", "engine")]
    return [row["name"], output.size_text(row["size"]), *texts, state]
