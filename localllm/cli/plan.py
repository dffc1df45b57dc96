"""`localllm plan`: what a model takes of this machine's memory, before anything is loaded."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from localllm.cli import output
from localllm.cli.finding import Found, find_model, hints, sound_catalogue
from localllm.cli.options import ModelName, Number, machine_options
from localllm.cli.table import Column, render, screen_width
from localllm.errors import LocalLLMError
from localllm.store.catalog import Entry

_COLUMNS = (
    Column("CONTEXT", right=True),
    Column("KV TYPE"),
    Column("WEIGHTS", right=True),
    Column("CACHE", right=True),
    Column("BUFFERS", right=True),
    Column("TOTAL", right=True),
    Column("FITS"),
)


@click.command("plan")
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.option("--ctx", type=Number(int, 0, 2**24), default=0, help="Only for so many tokens.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@machine_options
def command(model: str, ctx: int, as_json: bool, threads: int, isa: str | None) -> None:
    """Show the memory that a model takes, and the context that fits.

    The figures come from the code that allocates: weights as they are packed, the cache of keys and
    values for a context, the buffers of a step. Nothing is loaded; the file may even lack its data.
    Of a model that is not on this machine only the header is fetched, some megabytes. For models of
    llama.cpp, and for those of the package index that are not here, they are estimates.
    """
    found = find_model(model, may_pull=True)
    from localllm.session import catalogue_plans, memory_plans  # numpy and the native reader

    if isinstance(found.to_pull, Entry):  # in wheels, which are read as a whole
        sizes = {size.ref: size.attention for size in sound_catalogue().sizes}
        label, facts = (
            found.label,
            catalogue_plans(found.to_pull, sizes.get(found.to_pull.ref), n_ctx=ctx),
        )
    else:
        with _file(found) as (label, path), _named(label, path), hints(found):
            facts = memory_plans(path, n_ctx=ctx, n_threads=threads, isa=isa)
    facts = {"model": label, **facts}
    output.emit(json.dumps(facts) + "\n" if as_json else _text(facts))


@contextlib.contextmanager
def _named(label: str, path: Path) -> Iterator[None]:
    """Errors name the model, not a file that is there for the moment."""
    try:
        yield
    except LocalLLMError as e:
        e.message = e.message.replace(str(path), label)
        raise


@contextlib.contextmanager
def _file(found: Found) -> Iterator[tuple[str, Path]]:
    """The name of a model, and a file with its header: its own, or one that is fetched."""
    if found.to_pull is None or isinstance(found.to_pull, Entry):
        yield found.label, found.path
        return
    from localllm.store import sources
    from localllm.store.lockfile import Lockfile
    from localllm.store.remote_header import headers

    line = output.ProgressLine()

    def report(n_bytes: int) -> None:
        line.draw(f"{found.label}: {output.size_text(n_bytes)} of its header are here", force=True)

    try:
        with output.waiting(f"{found.label}: asking what there is"):
            offer = sources.offer(found.to_pull, sound_catalogue(), Lockfile())
        with headers(offer, report) as path:
            line.clear()
            yield str(offer.ref), path
    finally:
        line.clear()


def _text(facts: dict[str, Any]) -> str:
    size = output.size_text
    lines = [
        f"{output.escape_line(facts['model'])}: {output.escape_line(facts['architecture'])}, "
        f"{output.count_text(facts['parameters'])} parameters, "
        f"trained on {facts['trained']} tokens",
        f"{size(facts['free_bytes'])} of {size(facts['memory_bytes'])} are free here",
        *(["An estimate: the header or the catalogue says no more."] if facts["estimate"] else []),
        "",
    ]
    rows = [
        [
            str(row["n_ctx"]),
            row["kv_type"],
            size(row["weight_bytes"]),
            size(row["kv_bytes"]),
            size(row["scratch_bytes"]),
            size(row["total_bytes"]),
            "yes" if row["fits"] else "no",
        ]
        for row in facts["plans"]
    ]
    chosen, refused = facts["chosen"], facts["refused"]
    if refused:
        end = f"\n{output.escape(refused)}\n"
    else:
        how = ", with weights read from the file as needed" if chosen["mapped_bytes"] else ""
        end = f"\n`localllm run` takes a context of {chosen['n_ctx']} tokens{how}.\n"
    return "\n".join(lines) + "\n" + render(_COLUMNS, rows, screen_width()) + end
