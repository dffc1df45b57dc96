"""`localllm ps`: what the running servers have loaded."""

from __future__ import annotations

import json
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.table import Column, render, screen_width

_COLUMNS = (
    Column("NAME", cut=True),
    Column("STATUS"),
    Column("MEMORY", right=True),
    Column("CONTEXT", right=True),
    Column("REQUESTS"),
    Column("UNLOADED IN"),
    Column("SERVER"),
)


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="One JSON array with an object a server.")
def command(as_json: bool) -> None:
    """Show the models that servers of yours on this machine have loaded.

    MEMORY is what a model may take with its whole cache in use.
    """
    servers = running()
    if as_json:
        output.emit(json.dumps(servers) + "\n")
        return
    rows = [_cells(row, server["url"]) for server in servers for row in server["models"]]
    if rows:
        output.emit(render(_COLUMNS, rows, screen_width()))
    elif servers:
        where = ", ".join(server["url"] for server in servers)
        output.say(f"No model is loaded. A request loads one: {where}/v1")
    else:
        output.say("No server of yours runs on this machine. To start one: localllm serve")


def running() -> list[dict[str, Any]]:
    """What each server says of itself, with its `url`. One that does not answer is left out."""
    from localllm.server import announced, client

    found = []
    for server in announced.found(paths.current().servers):
        try:
            found.append({"url": server.url, **client.ask(server, "/localllm/ps", timeout_s=10)})
        except (client.ServerGoneError, client.RefusedError) as e:
            output.note(e.message)
    return found


def _cells(row: dict[str, Any], url: str) -> list[str]:
    status = str(row["status"])
    if status == "loading":
        status += f" {row['progress']:4.0%}"
    asked = [f"{row[name]} {name}" for name in ("answering", "waiting") if row[name]]
    return [
        str(row["name"]),
        status,
        output.size_text(int(row["n_bytes"])),
        str(row["n_ctx"] or ""),
        ", ".join(asked) or "none",
        "" if row["expires_s"] is None else _time(float(row["expires_s"])),
        url,
    ]


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
