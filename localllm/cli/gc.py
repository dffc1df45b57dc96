"""`localllm gc`: what lies about and belongs to no model."""

from __future__ import annotations

import json

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.confirm import confirm_deletion
from localllm.cli.table import Column, render, screen_width
from localllm.errors import LocalLLMError
from localllm.store import catalog, leftovers

_COLUMNS = (Column("KIND"), Column("SIZE", right=True), Column("WHAT", cut=True))


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Only show what could go.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(dry_run: bool, yes: bool, as_json: bool) -> int:
    """Clear away what belongs to no model: interrupted downloads, temporary files, records of files
    that are gone, old caches.

    A model is never deleted. What goes is shown first.
    """
    places = paths.current()
    found = leftovers.find(places, catalog.load())
    total = sum(each.size for each in found)
    if not as_json and not found:
        output.say("There is nothing to clear away.")
        return 0
    if not as_json:
        rows = [[each.kind, output.size_text(each.size), each.what] for each in found]
        output.emit(render(_COLUMNS, rows, screen_width()))
    if not dry_run and found and not yes:
        confirm_deletion(f"all of these ({output.size_text(total)})")
    failed = 0
    for each in () if dry_run else found:
        try:
            leftovers.remove(each)
        except LocalLLMError as e:
            failed += 1
            total -= each.size
            output.print_error(e)
    if as_json:
        items = [
            {"kind": e.kind, "what": e.what, "size": e.size, "paths": [str(p) for p in e.paths]}
            for e in found
        ]
        output.emit(
            json.dumps({"items": items, "size": total, "deleted": not dry_run and not failed})
            + "\n"
        )
    else:
        verb = "can be freed" if dry_run else "freed"
        output.emit(f"{output.size_text(total)} {verb}\n")
    return 1 if failed else 0
