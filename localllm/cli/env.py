"""`localllm env`: the settings with which other tools ask the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.tool_settings import BY_NAME
from localllm.errors import ArgumentError

_URL = "http://127.0.0.1:8000"
_MODEL = "smollm2:135m"
_UNSAFE = frozenset("'\"\\{}$`")


@dataclass(frozen=True)
class _Known:
    """What is known of the server."""

    url: str = f"{_URL}/v1"
    model: str = ""
    n_ctx: int = 0
    asks_for_key: bool = False


@click.command("env")
@click.argument("tool", type=click.Choice(list(BY_NAME)))
@click.option("--model", metavar="NAME", help="[default: the running server's first]")
@click.option("--url", metavar="URL", help=f"[default: a running server's, else {_URL}/v1]")
def command(tool: str, model: str | None, url: str | None) -> None:
    """Print the settings with which TOOL asks a running server.

    A server that asks for keys gets one of yours: put it where the text says YOUR_KEY.
    """
    known = _running()
    values = {"--model": model or known.model or _MODEL, "--url": url or known.url}
    for option, value in values.items():
        if not value.isprintable() or _UNSAFE & set(value) or " " in value:
            raise ArgumentError(f"{option}: {value[:80]!a} has characters that no setting can hold")
    row = BY_NAME[tool]
    key = "YOUR_KEY" if known.asks_for_key else "none"
    filled = {"url": values["--url"], "model": values["--model"], "key": key}
    output.say(f"For {row.where.format(**filled)}:")
    output.emit(row.text.format(**filled, n_ctx=known.n_ctx or 8192))


def _running() -> _Known:
    """Of the newest server of this user."""
    from localllm.server import announced, client

    for server in announced.found(paths.current().servers):
        try:
            cards = client.ask(server, "/v1/models", timeout_s=5)["data"]
        except (client.ServerGoneError, client.RefusedError):
            continue
        first: dict[str, Any] = cards[0] if cards else {}
        return _Known(
            f"{server.url}/v1",
            str(first.get("id", "")),
            int(first.get("max_model_len", 0)),
            bool(server.key),
        )
    return _Known()
