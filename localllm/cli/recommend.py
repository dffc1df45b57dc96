"""`localllm recommend`: the models that suit this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.options import Number
from localllm.cli.table import Column, render, screen_width
from localllm.store import catalog
from localllm.store.index import Store
from localllm.store.recommend import CONTEXT, EFFICIENCY, Suggestion, recommend

_COLUMNS = (
    Column("NAME"),
    Column("PARAMETERS", right=True),
    Column("DOWNLOAD", right=True),
    Column("MEMORY", right=True),
    Column("TOKENS/S", right=True),
    Column("ENGINE"),
    Column("WHAT IT IS", cut=True),
)
#: Of the free memory, so that other programs keep a part.
_SHARE_OF_FREE = 0.9


@click.command("recommend")
@click.option("--ctx", "n_ctx", type=Number(int, 256, 1 << 20), default=CONTEXT,
              help="Tokens of context that must fit. [default: 8192]")  # fmt: skip
@click.option("--limit", type=Number(int, 1, 1000), default=10, help="[default: 10]")
@click.option("--measure", is_flag=True, help="Measure this machine again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(n_ctx: int, limit: int, measure: bool, as_json: bool) -> None:
    """Recommend models for this machine, with the speed that they will have.

    Of each family the largest model is shown that fits into the free memory with its context and
    answers at 5 tokens a second or more, the largest first. Sizes and speeds are predictions; what
    they assume is said below the table.
    """
    from localllm.session import machine_facts, remembered_roofs

    machine = machine_facts()
    roofs = remembered_roofs(paths.current().cache, anew=measure)
    room = int(machine.free_bytes * _SHARE_OF_FREE)
    found = recommend(catalog.load(), roofs.read_gb_per_s, lambda n: n <= room, n_ctx)[:limit]
    here = {model.ref for model in Store(paths.current().models).list()}
    if as_json:
        document = {
            "free_bytes": machine.free_bytes,
            "usable_bytes": room,
            "read_gb_per_s": round(roofs.read_gb_per_s, 2),
            "efficiency": EFFICIENCY,
            "models": [_row(each, each.ref in here) for each in found],
        }
        output.emit(json.dumps(document) + "\n")
        return
    if found:
        output.emit(render(_COLUMNS, [_cells(each) for each in found], screen_width()))
        output.say("")
    else:
        output.say(
            f"No model of the catalogue fits into {output.size_text(room)} with {n_ctx} tokens."
        )
    shares = ", ".join(f"{share:.0%} with {engine}" for engine, share in EFFICIENCY.items())
    output.say(
        f"Assumed: {output.size_text(machine.free_bytes)} of memory are free and "
        f"{_SHARE_OF_FREE:.0%} of it may be used; a context of {n_ctx} tokens in f16, half full; "
        f"memory is read at {roofs.read_gb_per_s:.1f} GB/s, measured here, of which answers reach "
        f"{shares}. Sizes follow from parameters and bits; `localllm pull` shows the exact ones."
    )


def _row(each: Suggestion, is_here: bool) -> dict[str, Any]:
    row = asdict(each)
    del row["ref"], row["quality"]
    return {
        "name": str(each.ref),
        **row,
        "tokens_per_s": round(each.tokens_per_s, 2),
        "memory_bytes": each.memory_bytes,
        "here": is_here,
    }


def _cells(each: Suggestion) -> list[str]:
    return [
        str(each.ref),
        output.count_text(each.n_params),
        output.size_text(each.weight_bytes),
        output.size_text(each.memory_bytes),
        f"{each.tokens_per_s:.1f}" if each.tokens_per_s < 100 else f"{each.tokens_per_s:.0f}",
        each.engine,
        f"{each.description} ({each.licence})" if each.licence else each.description,
    ]
