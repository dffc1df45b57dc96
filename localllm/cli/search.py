"""`localllm search`: models by a word in their name or description."""

from __future__ import annotations

import json
from typing import Any

import click

from localllm.cli import output
from localllm.cli.finding import sound_catalogue
from localllm.cli.options import Number
from localllm.cli.table import Column, render, screen_width
from localllm.errors import ArgumentError
from localllm.store.catalog import Catalog

_COLUMNS = (
    Column("NAME"),
    Column("PARAMETERS", right=True),
    Column("CONTEXT", right=True),
    Column("LICENCE"),
    Column("WHAT IT IS", cut=True),
)
_HUB_COLUMNS = (
    Column("NAME"),
    Column("DOWNLOADS", right=True),
    Column("LIKES", right=True),
    Column("CHANGED"),
    Column("ACCESS"),
)
_LONGEST = 200  # characters of a search


@click.command("search")
@click.argument("words", metavar="[WORD...]", nargs=-1)
@click.option("--hub", is_flag=True, help="Ask the Hugging Face Hub.")
@click.option("--limit", type=Number(int, 1, 1000), default=100, help="[default: 100]")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(words: tuple[str, ...], hub: bool, limit: int, as_json: bool) -> None:
    """Search the catalogue for models whose name, description, licence or architecture holds every
    WORD; without one, all are shown.

    With --hub the Hub is asked for repositories with GGUF files, the most downloaded first. Nothing
    else of this command uses the network.
    """
    text = " ".join(words)
    if len(text) > _LONGEST:
        raise ArgumentError(
            f"the search has {len(text)} characters", f"At most {_LONGEST} are taken."
        )
    if hub:
        rows, columns = _hub_rows(text, limit), _HUB_COLUMNS
    else:
        rows, columns = _rows(sound_catalogue(), text.lower().split())[:limit], _COLUMNS
    if as_json:
        output.emit(json.dumps(rows) + "\n")
    elif rows:
        cells = _hub_cells if hub else _cells
        output.emit(render(columns, [cells(row) for row in rows], screen_width()))
    else:
        where = "on the Hub" if hub else "in the catalogue"
        output.say(f"Nothing {where} matches {output.escape_line(text)!r}.")
        if not hub:
            output.say("The Hub has more: localllm search --hub WORD")


def _rows(known: Catalog, words: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "name": str(entry.ref),
            "description": entry.description,
            "architecture": entry.architecture,
            "parameters": entry.n_params,
            "context": entry.n_ctx,
            "licence": entry.licence,
            "kind": "chat" if entry.chat else "base",
            "variants": [],
            "repositories": [],
            "draft": None,
        }
        for entry in known
    ]
    packaged = {row["name"] for row in rows}
    rows += [
        {
            "name": str(size.ref),
            "description": size.description,
            "architecture": size.architecture,
            "parameters": size.n_params,
            "context": size.n_ctx or None,
            "licence": size.licence or None,
            "kind": size.kind,
            "variants": [variant.name for variant in size.variants],
            "repositories": [str(each) for each in size.variants[0].repositories],
            "draft": size.draft or None,
        }
        for size in known.sizes
        if str(size.ref) not in packaged
    ]
    rows.sort(key=lambda row: (str(row["name"]).partition(":")[0], row["parameters"]))
    keys = ("name", "description", "architecture", "licence", "kind")
    texts = [" ".join(str(row[key]) for key in keys).lower() for row in rows]
    return [
        row for row, text in zip(rows, texts, strict=True) if all(word in text for word in words)
    ]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        output.count_text(row["parameters"]),
        str(row["context"] or "-"),
        row["licence"] or "-",
        row["description"],
    ]


def _hub_rows(text: str, limit: int) -> list[dict[str, Any]]:
    if not text:
        raise ArgumentError("a search of the Hub needs a word", "localllm search --hub gemma")
    from localllm.store.sources.hub import Hub  # the Hub's client: 150 ms

    with output.waiting("asking the Hub"):
        found = Hub().search(text, limit)
    return [
        {
            "name": f"hf.co/{match.repository}",
            "downloads": match.downloads,
            "likes": match.likes,
            "modified": match.modified or None,
            "gated": match.gated,
        }
        for match in found
    ]


def _hub_cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        output.count_text(row["downloads"]),
        output.count_text(row["likes"]),
        (row["modified"] or "-")[:10],
        "gated" if row["gated"] else "open",
    ]
