"""`localllm serve`: a model for every program that speaks OpenAI's API."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

import click

from localllm.cli import opening, output
from localllm.cli.api_keys import read_keys
from localllm.cli.interrupt import Interrupts, exit_at_once
from localllm.cli.options import Found, ModelName, Number, hints, machine_options
from localllm.cli.run import ENGINES, template_text
from localllm.cli.serve_flags import translate
from localllm.errors import ArgumentError

PORT = 8000
_NAME = re.compile(r"[^\x00-\x20\x7f]{1,200}")


class ServeCommand(click.Command):
    """Also takes the flags of `vllm serve` and `llama-server`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        translated = translate(args)
        for note in translated.notes:
            output.note(note)
        return super().parse_args(ctx, translated.args)


@click.command("serve", cls=ServeCommand)
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=Number(int, 0, 65535), default=PORT, show_default=True, help="0: any free one."
)
@click.option(
    "--api-key", metavar="KEY|@FILE", multiple=True, help="What clients must send. Several may be."
)
@click.option("--name", multiple=True, help="What requests call the model. Several may be.")
@click.option("--cors-origin", metavar="URL", multiple=True, help="A web page that may ask.")
@click.option("--allowed-host", metavar="HOST", multiple=True, help="A name of this machine.")
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
@click.option("--mmap", is_flag=True, help="Read weights from the file as needed: slower.")
@machine_options
def command(model: str, **options: Any) -> None:
    """Serve a model to other programs, until Ctrl-C.

    They use http://127.0.0.1:8000/v1 as the address of OpenAI's API. An address that other
    machines reach needs a key. The usual flags of vllm serve and llama-server are taken too.
    """
    from localllm.server.security import Access
    from localllm.store.identifiers import is_loopback

    host, port = options["host"], options["port"]
    keys = read_keys(options["api_key"])
    if not keys and not is_loopback(host):
        raise ArgumentError(
            f"--host {host[:80]} can be reached from other machines: that needs --api-key",
            "Write a long random one into a file of your own: --api-key @FILE",
        )
    access = Access(
        host=host,
        keys=keys,
        origins=tuple(map(_origin, options["cors_origin"])),
        hosts=options["allowed_host"],
    )
    names = tuple(map(_model_name, options["name"]))
    found = opening.find(model)
    from localllm.server import app, listen
    from localllm.server.models import OneModel

    listening = listen.bind(host, port)
    tls = listen.Tls(options["tls_cert"], options["tls_key"]) if options["tls_cert"] else None
    service = _load(found, options)
    try:
        sampling = {**service.info.recommended, **found.settings.sampling}
        models = OneModel(service, names or (found.label,), sampling)
        server = listen.server(app.build(models, access, strict=options["strict"]), tls)
    except BaseException:
        service.close()
        raise
    bound = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if tls else "http"
    output.say(output.escape_line(f"{(names or (found.label,))[0]} is served at"))
    output.say(f"  {scheme}://{shown}:{bound}/v1")
    output.say("Ctrl-C ends it.")
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        output.say("\nEnded.")


def _load(found: Found, options: dict[str, Any]) -> Any:
    from localllm.server.opening import ModelFile, OpenOptions, open_service

    carried = found.settings
    n_threads = min(carried.at_load("num_thread"), os.cpu_count() or 1)
    template = options["template"]
    line = output.ProgressLine()

    def notice(text: str) -> None:
        line.clear()
        output.note(text)

    try:
        with Interrupts(exit_at_once, ends=True), hints(found):
            return open_service(
                ModelFile(found.path, found.label, found.digest or "", carried.template),
                OpenOptions(
                    engine=options["engine"],
                    n_threads=options["threads"] or n_threads,
                    n_ctx=options["ctx"] or carried.at_load("num_ctx"),
                    kv_type=options["kv_type"],
                    isa=options["isa"],
                    template=None if template is None else template_text(template),
                    mmap=options["mmap"],
                ),
                max_queue=options["max_queue"],
                n_sequences=options["parallel"],
                progress=lambda share: line.draw(f"loading {found.label} {share:4.0%}"),
                notice=notice,
            )
    finally:
        line.clear()


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
