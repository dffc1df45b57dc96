"""`localllm recommend`: the models that suit this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.finding import sound_catalogue
from localllm.cli.options import Number
from localllm.cli.table import Column, render, screen_width
from localllm.store import speeds
from localllm.store.durable import free_disk
from localllm.store.index import Store
from localllm.store.recommend import (
    ASSUMED,
    CONTEXT,
    EFFICIENCY,
    MEASURED,
    SHARE_OF_FREE,
    Suggestion,
    recommend,
)

_COLUMNS = (
    Column("NAME"),
    Column("PARAMETERS", right=True),
    Column("DOWNLOAD", right=True),
    Column("MEMORY", right=True),
    Column("TOKENS/S", right=True),
    Column("SPEED IS", cut=True),
    Column("ENGINE"),
    Column("WHAT IT IS", cut=True),
)


@click.command("recommend")
@click.option("--ctx", "n_ctx", type=Number(int, 256, 1 << 20), default=CONTEXT,
              help="Tokens of context that must fit. [default: 8192]")  # fmt: skip
@click.option("--limit", type=Number(int, 1, 1000), default=10, help="[default: 10]")
@click.option("--measure", is_flag=True, help="Measure this machine again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(n_ctx: int, limit: int, measure: bool, as_json: bool) -> None:
    """Recommend models for this machine, with the speed that they will have.

    Of each family the largest model is shown that fits into the free memory with its context, and
    on the disk, and answers at 5 tokens a second or more, the largest first. SPEED IS says what a
    speed rests on: `measured` here, by `localllm bench NAME` or answers of `run`; measured with the
    model of like size that is named; or `assumed`, the usual share of what this machine's memory
    was measured to deliver. Sizes are predictions.
    """
    from localllm.session import machine_facts, remembered_roofs

    machine = machine_facts()
    roofs = remembered_roofs(paths.current().cache, anew=measure)
    room = int(machine.free_bytes * SHARE_OF_FREE)
    models = Store(paths.current().models).list()
    here = {model.ref for model in models}
    disk = free_disk(paths.current().models)

    def has_disk(each: Suggestion) -> bool:
        return disk is None or each.ref in here or each.weight_bytes <= disk

    def fits(each: Suggestion) -> bool:
        return each.memory_bytes <= room and has_disk(each)

    known = speeds.here(paths.current().cache, models, machine.isa, machine.n_threads)
    found = recommend(sound_catalogue(), roofs.read_gb_per_s, fits, n_ctx, known)[:limit]
    if as_json:
        document = {
            "free_bytes": machine.free_bytes,
            "usable_bytes": room,
            "disk_free_bytes": disk,
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
            f"No model of the catalogue fits into {output.size_text(room)} of memory with {n_ctx} "
            f"tokens{_on_disk(disk)}."
        )
    shares = ", ".join(f"{share:.0%} with {engine}" for engine, share in EFFICIENCY.items())
    output.say(
        f"{output.size_text(machine.free_bytes)} of memory are free, of which "
        f"{SHARE_OF_FREE:.0%} may be used{_on_disk(disk)}; a context of {n_ctx} tokens in f16, "
        f"half full; memory is read at {roofs.read_gb_per_s:.1f} GB/s, measured here. Where a "
        f"speed is assumed, answers reach {shares} of that; `localllm bench NAME` measures it. "
        "Sizes follow from parameters and bits; `localllm pull` shows the exact ones."
    )


def _on_disk(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f", and {output.size_text(n_bytes)} of disk are free"


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
        each.basis if each.basis in (MEASURED, ASSUMED) else f"as {each.basis}",
        each.engine,
        f"{each.description} ({each.licence})" if each.licence else each.description,
    ]
