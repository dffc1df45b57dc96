"""`localllm serve`: models for every program that speaks OpenAI's API."""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from localllm import paths
from localllm.cli import opening, output
from localllm.cli.api_keys import SHORTEST, read_named_keys
from localllm.cli.finding import Found, hints
from localllm.cli.generation_options import SamplingDefault
from localllm.cli.interrupt import Interrupts, exit_at_once
from localllm.cli.loading_options import ENGINES, template_text
from localllm.cli.options import ModelName, Number, machine_options
from localllm.cli.quantities import ByteSize, KeepAlive
from localllm.cli.serve_flags import translate
from localllm.cli.tier_options import tier_options, tiers_of
from localllm.errors import ArgumentError

PORT = 8000
LOG_FORMATS = ("text", "json")
_NAME = re.compile(r"[^\x00-\x20\x7f]{1,200}")


class ServeCommand(click.Command):
    """Also takes the flags of `vllm serve` and `llama-server`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        translated = translate(args, os.environ)
        for note in translated.notes:
            output.note(note)
        rest = super().parse_args(ctx, translated.args)
        if not ctx.params.get("models") and translated.model:
            ctx.params["models"] = (translated.model,)
        return rest


@click.command("serve", cls=ServeCommand)
@click.argument("models", metavar="[NAME|PATH]...", type=ModelName(), nargs=-1)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=Number(int, 0, 65535), default=PORT, show_default=True, help="0: any free one."
)
@click.option(
    "--api-key",
    metavar="KEY|@FILE",
    multiple=True,
    help="What clients must send. Several may be; lines of a file are KEY or NAME KEY.",
)
@click.option("--name", multiple=True, help="What requests call the model. Several may be.")
@click.option("--cors-origin", metavar="URL", multiple=True, help="A web page that may ask.")
@click.option("--allowed-host", metavar="HOST", multiple=True, help="A name of this machine.")
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True,
    help="json: a line a request on stdout, without what was asked or answered.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse requests with fields that nobody knows.")
@click.option(
    "--max-queue",
    type=Number(int, 1, 100_000),
    default=512,
    show_default=True,
    help="Requests that may wait.",
)
@click.option(
    "--parallel",
    type=Number(int, 1, 1024),
    default=8,
    show_default=True,
    help="Answers that are computed at once; further ones wait.",
)
@click.option(
    "--max-connections",
    type=Number(int, 1, 100_000),
    default=512,
    show_default=True,
    help="Connections at once; further ones get 503.",
)
@click.option(
    "--keep-alive",
    type=KeepAlive(),
    help="How long a model stays loaded unused: seconds, 5m, 0, or -1: forever. "
    "[default: 5m; the first NAME stays]",
)
@click.option("--memory", type=ByteSize(), help="For all models together. [default: what is free]")
@click.option("--tls-cert", metavar="FILE", help="Serve https with this certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key, if it is not in the same file.")
@click.option(
    "--template",
    metavar="FAMILY|FILE",
    help="A chat template in place of the model's: a family such as chatml, or a file.",
)
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True)
@click.option(
    "--ctx",
    type=Number(int, 0, 2**24),
    default=0,
    help="Tokens of context. [default: the model's, or what fits]",
)
@click.option(
    "--kv-type", type=click.Choice(["f16", "q8_0"]), default="f16", show_default=True,
    help="How the context is kept in memory.",
)  # fmt: skip
@click.option(
    "--sampling", metavar="NAME=VALUE", multiple=True, type=SamplingDefault(),
    help="A parameter of answers where a request has none, as temperature=0.6. Several may be.",
)  # fmt: skip
@click.option("--mmap", is_flag=True, help="Read weights from the file as needed: slower.")
@tier_options
@machine_options
def command(models: tuple[str, ...], **options: Any) -> None:
    """Serve models to other programs, until Ctrl-C.

    They use http://127.0.0.1:8000/v1 as the address of OpenAI's API. The first NAME is loaded at
    once, others when a request asks for them; without NAME these are all models that are here. A
    model that nobody asks is unloaded after a while, or when another one needs its memory.

    An address that other machines reach needs a key. The usual flags of vllm serve and llama-server
    are taken too.
    """
    from localllm.server.security import Access
    from localllm.store.identifiers import is_loopback

    host, port = options["host"], options["port"]
    # Where only this machine can ask, a key such as EMPTY is for clients that must have one.
    keys = read_named_keys(options["api_key"], 1 if is_loopback(host) else SHORTEST)
    if not keys and not is_loopback(host):
        raise ArgumentError(
            f"--host {host[:80]} can be reached from other machines: that needs --api-key",
            "Write a long random one into a file of your own: --api-key @FILE",
        )
    own_key = secrets.token_urlsafe(32) if keys else ""  # for programs of this user
    access = Access(
        host=host,
        keys=tuple(key for _, key in keys),
        key_names=tuple(name for name, _ in keys),
        own_key=own_key,
        origins=tuple(map(_origin, options["cors_origin"])),
        hosts=options["allowed_host"],
    )
    if options["tls_key"] and not options["tls_cert"]:
        raise ArgumentError("--tls-key is the key of a certificate: that needs --tls-cert")
    names = tuple(map(_model_name, options["name"]))
    if names and len(models) != 1:
        raise ArgumentError(f"--name is for one model, {len(models)} were given")
    found = [opening.find(model) for model in models]
    from localllm.server import app, listen, request_log
    from localllm.server.announced import Announced, announcing

    tls = listen.Tls(options["tls_cert"], options["tls_key"]) if options["tls_cert"] else None
    if tls is not None:
        tls.check()  # before minutes go into a model
    listening = listen.bind(host, port)
    request_log.install(options["log_format"])
    application = app.build(_manager(found, names, options), access, strict=options["strict"])
    server = listen.server(
        application,
        tls,
        max_connections=options["max_connections"],
        cut=application.state.server.cut,
    )
    bound = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    what = names[0] if names else _ids(found)[0] if found else "all models here"
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    scheme = "https" if tls else "http"
    reached = "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host == "::" else shown
    own = Announced(
        f"{scheme}://{reached}:{bound}",
        os.getpid(),
        key=own_key,
        certificate=str(Path(options["tls_cert"]).absolute()) if tls else "",
    )
    try:
        with announcing(paths.current().servers, own):
            output.say(output.escape_line(f"{what}{more}: served at"))
            output.say(f"  {scheme}://{shown}:{bound}/v1")
            output.say("Ctrl-C ends it.")
            signal.signal(signal.SIGTERM, _ended)  # uvicorn raises it again once all is answered
            server.run(sockets=[listening])
    except KeyboardInterrupt:
        output.say("\nEnded.")


def _ended(number: int, frame: Any) -> None:
    raise SystemExit(0)


def _manager(found: list[Found], names: tuple[str, ...], options: dict[str, Any]) -> Any:
    """The models that were named, the first one loaded."""
    from localllm.server.file_loader import FileLoader
    from localllm.server.keep_alive import DEFAULT_S
    from localllm.server.manager import Manager
    from localllm.server.opening import OpenOptions, Room, free_to_the_system
    from localllm.server.shelf import Shelf

    template, keep_s = options["template"], options["keep_alive"]
    opened = OpenOptions(
        engine=options["engine"],
        n_threads=options["threads"],
        n_ctx=options["ctx"],
        kv_type=options["kv_type"],
        isa=options["isa"],
        template=None if template is None else template_text(template),
        mmap=options["mmap"],
        tiers=tiers_of(options),
    )
    line = output.ProgressLine()

    def notice(text: str) -> None:
        line.clear()
        output.note(text)

    free_to_the_system()
    room = Room.here()
    budget = options["memory"] or room.free_bytes
    room = Room(room.memory_bytes, min(budget, room.free_bytes or budget))
    ids = _ids(found)
    items = [_item(each, names or (id,), opened) for each, id in zip(found, ids, strict=True)]
    sampling = dict(options["sampling"])
    loader = FileLoader(options["max_queue"], options["parallel"], notice)
    shelf = Shelf(items, opened, sampling)
    items = shelf.items() if items else []
    manager = Manager(shelf, loader, budget, DEFAULT_S if keep_s is None else keep_s)
    if not items:
        return manager
    first = items[0]
    try:
        with Interrupts(exit_at_once, ends=True), hints(found[0]):
            need = loader.need(first, room)
            service = loader.open(
                first, room, lambda share: line.draw(f"loading {found[0].label} {share:4.0%}")
            )
    finally:
        line.clear()
    n_bytes = need.held_bytes or min(need.needed_bytes, budget)
    manager.adopt(first, service, n_bytes, math.inf if keep_s is None else keep_s)
    return manager


def _ids(found: list[Found]) -> list[str]:
    """What requests call models without a --name: a file by its name, its folders are nobody's
    business."""
    ids: list[str] = []
    for each in found:
        is_file = each.model is None and each.foreign is None
        id = Path(each.label).name.removesuffix(".gguf") if is_file else each.label
        ids.append(each.label if not id or id in ids else id)
    return ids


def _item(found: Found, names: tuple[str, ...], options: Any) -> Any:
    from localllm.server.opening import ModelFile
    from localllm.server.shelf import Item

    carried = found.settings
    return Item(
        ModelFile(found.path, found.label, found.digest or "", carried.template),
        options.carried(carried.at_load("num_ctx"), carried.at_load("num_thread")),
        names,
        int(time.time()),
        sampling=carried.sampling,
        ref=found.model.ref if found.model is not None else None,
    )


def _model_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"--name: {name[:80]!a} is no name", "It has no spaces.")
    return name


def _origin(text: str) -> str:
    """An origin as browsers send it: scheme, host and port, in which the port may be `*`."""
    try:
        parts = urlsplit(text.removesuffix("*") if text.endswith(":*") else text)
        good = parts.scheme and parts.netloc and not (parts.path or parts.query or "*" in text[:-1])
    except ValueError:
        good = False
    if not good:
        raise ArgumentError(
            f"--cors-origin: {text[:80]!a} is no origin",
            "As in http://localhost:3000, or with any port: http://localhost:*",
        )
    return text
