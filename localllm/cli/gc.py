"""`localllm gc`: what lies about and belongs to no model."""

from __future__ import annotations

import json
from typing import Any

import click

from localllm import moments, paths
from localllm.cli import output
from localllm.cli.confirm import confirm_deletion
from localllm.cli.finding import sound_catalogue
from localllm.cli.options import ParamType
from localllm.cli.table import Column, render, screen_width
from localllm.errors import LocalLLMError
from localllm.store import leftovers

_COLUMNS = (Column("KIND"), Column("SIZE", right=True), Column("AGE"), Column("WHAT", cut=True))


class _Span(ParamType):
    """A span of time, in seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return moments.span(value)


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Only show what could go.")
@click.option("--older-than", metavar="SPAN", type=_Span(), default="0m",
              help="Only what nobody has touched for so long: 12h, 7d, 2w.")  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(dry_run: bool, older_than: int, yes: bool, as_json: bool) -> int:
    """Clear away what belongs to no model: interrupted downloads, temporary files, records of files
    that are gone, old caches, computed conversations.

    A model is never deleted. What goes is shown first. An interrupted download that is still wanted
    stays with --older-than 7d: the next pull of it goes on where it was.
    """
    places = paths.current()
    found = leftovers.find(places, sound_catalogue(), older_than)
    total = sum(each.size for each in found)
    if not as_json and not found:
        output.say("There is nothing to clear away.")
        return 0
    if not as_json:
        rows = [
            [each.kind, output.size_text(each.size), moments.ago(moments.iso(each.modified)),
             each.what]
            for each in found
        ]  # fmt: skip
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
            {"kind": e.kind, "what": e.what, "size": e.size, "modified": moments.iso(e.modified),
             "paths": [str(p) for p in e.paths]}
            for e in found
        ]  # fmt: skip
        output.emit(
            json.dumps({"items": items, "size": total, "deleted": not dry_run and not failed})
            + "\n"
        )
    else:
        verb = "can be freed" if dry_run else "freed"
        output.emit(f"{output.size_text(total)} {verb}\n")
    return 1 if failed else 0
