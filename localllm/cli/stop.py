"""`localllm stop`: a running server lets go of a model."""

from __future__ import annotations

import click

from localllm import paths
from localllm.cli import output
from localllm.errors import ArgumentError, FileError


@click.command("stop")
@click.argument("name")
def command(name: str) -> None:
    """Unload a model from the servers of yours on this machine.

    Answers that are being given end as they would. The next request for it loads it again.
    """
    from localllm.server import announced, client

    servers = announced.found(paths.current().servers)
    if not servers:
        raise FileError("no server of yours runs on this machine", "To start one: localllm serve")
    refusals, known = [], False
    shown = output.escape_line(name)
    for server in servers:
        try:
            answer = client.ask(server, "/localllm/stop", {"model": name})
        except (client.ServerGoneError, client.RefusedError) as e:
            refusals.append(e.message)
            continue
        known = True
        if not answer["was_loaded"]:
            output.say(f"{shown} is not loaded at {server.url}.")
        elif answer["answering"]:
            output.say(
                f"{shown} is unloaded at {server.url} once its {answer['answering']} answers end."
            )
        else:
            output.say(f"{shown} was unloaded at {server.url}.")
    if not known:
        raise ArgumentError(refusals[0], "What is loaded: localllm ps")
