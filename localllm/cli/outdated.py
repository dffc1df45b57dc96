"""`localllm outdated`: which models have news at their source. Only listings are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.finding import sound_catalogue
from localllm.cli.table import Column, render, screen_width
from localllm.errors import LocalLLMError
from localllm.store import sources, wanted
from localllm.store.catalog import Catalog
from localllm.store.index import Model, Store
from localllm.store.lockfile import Pin, PinnedFile, outdated

_COLUMNS = (Column("NAME"), Column("SOURCE"), Column("NEWS"))
#: Sources that can be asked whether they have something newer.
_ASKED = ("hub", "oci", "url", "peer")


@click.command("outdated")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(as_json: bool) -> None:
    """Ask the sources of all models here whether they have other files by now.

    Nothing is fetched. To take what is new: localllm pull --all
    """
    rows = news(sound_catalogue())
    if as_json:
        output.emit(json.dumps(rows) + "\n")
        return
    cells = [[row["name"], row["source"], row["news"] or row["error"]] for row in rows]
    if cells := [row for row in cells if row[2]]:
        output.emit(render(_COLUMNS, cells, screen_width()))
    else:
        output.say(up_to_date(rows))


def up_to_date(rows: Sequence[Mapping[str, Any]]) -> str:
    """What is said where no source had news; `rows` are those of `news`."""
    n_silent = sum(bool(row["error"]) for row in rows)
    n_others = len(Store(paths.current().models).list()) - len(rows)
    if not n_others and not n_silent:
        return "Every model here is as its source has it."
    if not rows:
        return (
            "No model here has a source that could have news: what is in the package index stays "
            "as it is, and files of your own are yours."
        )
    said = []
    if n_silent:
        said.append(f"{n_silent} could not be asked about (localllm outdated says why)")
    if n_others:
        said.append(f"{n_others} have no source that can be asked")
    n_same = len(rows) - n_silent
    return f"Of the models here {n_same} are as their source has them, {' and '.join(said)}."


def news(known: Catalog) -> list[dict[str, Any]]:
    """A row for each model whose source can be asked; an unreachable one costs only its rows."""
    rows = []
    for model in Store(paths.current().models).list():
        record = model.record or model.damaged
        if record is None or record.kind not in _ASKED:
            continue
        row = {"name": str(model.ref), "source": record.repository, "address": _address(model)}
        try:
            with output.waiting(f"{model.ref}: asking what there is"):
                rows.append({**row, "news": _news(model, known), "error": ""})
        except LocalLLMError as e:
            rows.append({**row, "news": "", "error": e.message})
    return rows


def _news(model: Model, known: Catalog) -> str:
    record = model.record or model.damaged
    assert record is not None  # the caller looked
    offer = sources.offer(wanted.parse(_address(model)), known, None)
    if record.kind == "url":  # no hashes: its server says when it changes
        return "" if offer.revision == record.revision else "another file"
    files = tuple(PinnedFile(file.name, file.size, file.sha256) for file in record.files)
    pin = Pin(record.kind, record.repository, record.revision, record.quantization, files)
    return outdated(pin, offer)


def _address(model: Model) -> str:
    """What leads to the source of a model again."""
    record = model.record or model.damaged
    assert record is not None
    if record.kind == "hub" and "/" in model.ref.name:
        quant = f":{record.quantization}" if record.quantization else ""
        return f"hf.co/{record.repository}{quant}"
    return record.repository if record.kind != "hub" else str(model.ref)
