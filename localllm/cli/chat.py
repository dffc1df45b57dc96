"""`localllm chat`: conversations on the whole terminal, over models of this machine or of a server
with OpenAI's API."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from localllm.cli import output
from localllm.cli.generation_options import RunCommand, chosen, parameter_options
from localllm.cli.loading_options import (
    Opening,
    beginning_options,
    loading_options,
    opening_of,
    system_of,
    think_of,
)
from localllm.cli.options import ModelName
from localllm.errors import ArgumentError, LocalLLMError

if TYPE_CHECKING:
    from localllm.openai_session import Endpoint
    from localllm.tui.conversations.kinds import Forgotten
    from localllm.tui.conversations.store import Conversations
    from localllm.tui.opening import Beginning, Opener


@click.command("chat", cls=RunCommand)
@click.argument("model", metavar="[NAME|PATH]", required=False, type=ModelName())
@click.option(
    "--url", metavar="URL", help="Ask a server with OpenAI's API, such as http://HOST:PORT/v1."
)
@click.option(
    "--api-key", metavar="KEY|@FILE", help="What that server asks for. [default: LOCALLLM_API_KEY]"
)
@click.option("--list", "listed", is_flag=True, help="Print the conversations that are kept.")
@click.option("--export", metavar="FILE", help="Write them to a .json or .md file.")
@click.option("--import", "bring", metavar="FILE", help="Add those of a JSON file.")
@click.option("--only", metavar="WORDS", help="List or export what has them in its title or tags.")
@parameter_options
@beginning_options
@loading_options
def command(model: str | None, url: str | None, api_key: str | None, **options: Any) -> int:
    """Talk with models on the whole terminal: conversations that are kept, searched and go on.

    Without a model it begins with the one that was used last, or with the list of models. A model
    that is not here is pulled first. With --url the models are those of a server: llama-server,
    Ollama, vLLM, a hosted one, or localllm serve on another machine.

    F1 shows the keys, Ctrl-P all that can be done.
    """
    kept = {name: options.pop(name) for name in ("listed", "export", "bring", "only")}
    if any(value for value in kept.values()):
        return _kept(kept)
    system, think, wished = system_of(options), think_of(options), opening_of(options)
    endpoint = _endpoint(url, api_key, wished)
    _require_terminal()
    from localllm.tui.opening import Beginning, LoadOptions

    beginning = Beginning(
        sampling=chosen(options),  # what is left
        system=system,
        think=think,
        options=LoadOptions(wished.n_ctx, wished.kv_type),
    )
    if endpoint is None and model is not None:
        from localllm.cli import opening

        opening.find(model)  # an error here is one of the command line; pulls it
    return _talk(_opener(model, endpoint, wished), beginning)


def _kept(wanted: dict[str, Any]) -> int:
    """Lists, exports or imports, which needs no terminal and no model."""
    asked = [name for name in ("listed", "export", "bring") if wanted[name]]
    if len(asked) != 1 or (wanted["only"] and wanted["bring"]):
        raise ArgumentError(
            "--list, --export and --import exclude each other, and --only is for the first two"
        )
    from localllm.cli import kept_chats
    from localllm.tui.conversations.store import Conversations

    texts = {name: wanted[name] or "" for name in ("only", "export", "bring")}
    return kept_chats.run(Conversations(), listed=wanted["listed"], **texts)


def _endpoint(url: str | None, api_key: str | None, wished: Opening) -> Endpoint | None:
    if url is None:
        if api_key is not None:
            raise ArgumentError(
                "--api-key is for a server", "Name it with --url http://HOST:PORT/v1"
            )
        return None
    if wished.asks_for_a_load or wished.kv_type != "f16":
        raise ArgumentError(
            "--url: how that server loads its models is not asked from here",
            "Leave out --ctx, --kv-type, --engine, --template, --mmap, --threads and --isa.",
        )
    from dataclasses import replace

    from localllm.cli.api_keys import read_keys
    from localllm.openai_session import endpoint_of
    from localllm.store.sources.peer import key_of_environment

    found = endpoint_of(url)
    keys = read_keys([api_key]) if api_key is not None else ()
    if len(keys) > 1:
        raise ArgumentError("--api-key: there are several keys, and a server wants one")
    return replace(found, key=keys[0] if keys else key_of_environment(found.host.lower()))


def _require_terminal() -> None:
    streams = (sys.stdin, sys.stdout)
    if any(stream is None or not stream.isatty() for stream in streams):
        raise ArgumentError(
            "chat needs a terminal for its input and its output",
            "Where there is none: localllm run NAME 'PROMPT', or with --plain a turn a line.",
        )
    if os.environ.get("TERM") == "dumb":
        raise ArgumentError(
            "chat needs a terminal that can place its text, and TERM is dumb",
            "A conversation without that: localllm run NAME --plain",
        )


def _opener(model: str | None, endpoint: Endpoint | None, wished: Opening) -> Opener:
    from localllm.cli.chat_opening import LocalOpener, UrlOpener

    return LocalOpener(model, wished) if endpoint is None else UrlOpener(model, endpoint)


def _talk(opener: Opener, beginning: Beginning) -> int:
    gc.disable()  # up to the first paint: of what is imported nothing goes away
    from localllm.tui.app import ChatApp
    from localllm.tui.conversations.store import Conversations

    def forget(gone: Forgotten) -> None:
        opener.forget_conversation(str(gone.conversation.id))

    store = Conversations(forget=forget)
    trouble: LocalLLMError | None = None
    try:
        app = ChatApp(opener, store, beginning)
        app.run()
    finally:
        trouble = store.close()
        opener.close()
    if trouble is not None:
        output.print_error(trouble)
        _rescue(store)
        return 1
    if app.fault is not None:
        raise app.fault
    return app.return_code or 0


def _rescue(store: Conversations) -> None:
    """What could not be saved is put where it can be, and the user told so."""
    import tempfile
    from pathlib import Path

    from localllm.tui.conversations.exporting import rescue

    path = rescue(store, [Path.home(), Path(tempfile.gettempdir())])
    if path is not None:
        output.say(output.escape_line(f"It is in {path} instead: localllm chat --import {path}"))
