"""Writes the tables of docs/COMMAND_LINE.md that the program's own tables give: the parameters of
an answer, and the commands of a conversation. Usage: document_tables.py [--check]"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from localllm.cli.repl.commands import COMMANDS
from localllm.params import PARAMETERS, Parameter

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "COMMAND_LINE.md"
_HEADS = ("| parameter | default | range | meaning |", "| command | what it does |")


def parameters() -> list[str]:
    """The rows of the table of parameters."""
    return [
        f"| `{name}` | {_default(row)} | {_span(row)} | {_escaped(row.help)} |"
        for name, row in PARAMETERS.items()
    ]


def commands() -> list[str]:
    """The rows of the table of commands."""
    return [
        f"| `{_escaped(f'/{name} {row.usage}'.rstrip())}` | {_escaped(row.help)} |"
        for name, row in COMMANDS.items()
    ]


def documented(guide: str) -> str:
    """The guide with both tables as they should be."""
    for head, rows in zip(_HEADS, (parameters(), commands()), strict=True):
        table = re.compile(re.escape(head) + r"\n\|[-|]+\|\n(?:\|.*\n)*")
        rule = "|" + "---|" * (head.count("|") - 1)
        text = "\n".join([head, rule, *rows]) + "\n"
        guide, found = table.subn(lambda match, text=text: text, guide)  # type: ignore[misc]
        if found != 1:
            raise SystemExit(f"{GUIDE} has {found} tables that begin with {head}")
    return guide


def _default(row: Parameter) -> str:
    value: Any = row.default
    if row.name == "seed":
        return "new each time"
    if isinstance(value, tuple):
        return ", ".join(f"`{_escaped(repr(each)[1:-1])}`" for each in value) or "none"
    if isinstance(value, bool) or value is None:
        return {False: "off", None: "none"}[value]
    return f"{value:g}"


def _span(row: Parameter) -> str:
    if row.kind in ("strings", "bias", "order"):
        return {"strings": "texts", "bias": "-100 to 100", "order": "names"}[row.kind]
    return _escaped(row.span.removeprefix("from "))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(check: bool) -> int:
    """Writes the guide; with `check` only says whether it is up to date."""
    before = GUIDE.read_text("utf-8")
    after = documented(before)
    if check:
        return 0 if after == before else 1
    GUIDE.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
