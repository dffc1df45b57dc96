"""`localllm list`: the models on this machine."""

from __future__ import annotations

import datetime
import json
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.store import catalog, download
from localllm.store.index import Model, Store


@click.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also what can be pulled.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(show_all: bool, as_json: bool) -> None:
    """List the models on this machine, and downloads that were interrupted."""
    places = paths.current()
    models = Store(places.models).list()
    here = {model.ref for model in models}
    rows = [_installed(model) for model in models]
    for entry in catalog.load():
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
        output.emit(_table(rows))
    else:
        output.say("No models yet. Bring one here with: localllm pull smollm2:135m")


def _installed(model: Model) -> dict[str, Any]:
    record = model.record
    return {
        "name": str(model.ref),
        "state": "damaged" if model.damaged else "ready",
        "size": model.size,
        "quantization": record.quantization if record else None,
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
        "digest": f"sha256:{entry.sha256}",
        "download_size": entry.download_size,
        "downloaded": cached,
        "licence": entry.licence,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [["NAME", "SIZE", "QUANTIZATION", "STATE"]]
    for row in rows:
        state = row["state"]
        if state == "partial":
            done, total = row["downloaded"], row["download_size"]
            state = f"partial, {output.size_text(done)} of {output.size_text(total)} downloaded"
        elif state == "available":
            state = f"not here, {output.size_text(row['download_size'])} to download"
        lines.append(
            [row["name"], output.size_text(row["size"]), row["quantization"] or "-", state]
        )
    lines = [[output.escape_line(cell) for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )
