"""`localllm list`: the models on this machine."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from localllm import moments, paths
from localllm.cli import output
from localllm.cli.finding import sound_catalogue
from localllm.cli.table import Column, render, screen_width
from localllm.store import catalog, inventory
from localllm.store.index import Store

_COLUMNS = (
    Column("NAME"),
    Column("SIZE", right=True),
    Column("QUANTIZATION"),
    Column("SOURCE", cut=True),
    Column("LAST USED"),
    Column("ENGINE"),
    Column("STATE"),
)


@click.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also what can be pulled.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(show_all: bool, as_json: bool) -> None:
    """List the models on this machine, those of Ollama, LM Studio and the Hub's cache too, and
    downloads that were interrupted.

    ENGINE is what runs a model's architecture: native is our own, llama.cpp needs the extra
    localllm[compat].
    """
    places = paths.current()
    models = Store(places.models).list()
    rows = inventory.rows(models, places, sound_catalogue, show_all=show_all)
    if as_json:
        output.emit(json.dumps(rows) + "\n")
        return
    for model in models:
        if model.problem:
            output.say(f"note: {output.escape_line(f'{model.ref}: {model.problem}')}")
    if rows:
        output.emit(render(_COLUMNS, [_cells(row) for row in rows], screen_width()))
    else:
        _teach(sound_catalogue())


def _teach(known: catalog.Catalog) -> None:
    """What to do with an empty store. On stderr: there is no model to print."""
    output.say("No models yet. Bring one here with:\n")
    # Who is new here wants answers, and soon.
    for entry in sorted(known, key=lambda each: (not each.chat, each.download_size)):
        output.say(output.escape_line(f"  localllm pull {entry.ref}"))
        what = f"{entry.description}, {output.size_text(entry.download_size)}"
        output.say(
            textwrap.fill(
                output.escape_line(what), 72, initial_indent=" " * 6, subsequent_indent=" " * 6
            )
        )
    output.say("\n`localllm run NAME` does it by itself. A GGUF file of your own runs as it is:\n")
    output.say("  localllm run ./model.gguf")


def _cells(row: dict[str, Any]) -> list[str]:
    state = row["state"]
    if state in ("partial", "downloading"):
        done, total = row["downloaded"], row["download_size"]
        of = "" if total is None else f" of {output.size_text(total)}"
        state = f"{state}, {output.size_text(done)}{of} downloaded"
        if row["state"] == "partial":
            state += f", {moments.ago(row['modified'])}"
    elif state == "available":
        state = "not here"
    return [
        row["name"],
        "-" if row["size"] is None else output.size_text(row["size"]),
        row["quantization"] or "-",
        row["source"] or "-",
        moments.ago(row["used"]),
        row["engine"] or "-",
        state,
    ]
