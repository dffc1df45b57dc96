"""`localllm share`: models of this machine for other localllms in the network."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.api_keys import read_keys
from localllm.cli.finding import find_model
from localllm.cli.options import ModelName, Number
from localllm.errors import ArgumentError, FileError
from localllm.store.identifiers import is_loopback
from localllm.store.index import Store
from localllm.store.ref import Ref
from localllm.store.sources.peer import KEY_VARIABLE

PORT = 11435
_LOOPBACK = "127.0.0.1"


@click.command("share")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=ModelName())
@click.option("--host", default=_LOOPBACK, show_default=True, help="The address to listen on.")
@click.option("--port", type=Number(int, 0, 65535), default=PORT, show_default=True,
              help="0: any that is free.")  # fmt: skip
@click.option("--api-key", metavar="KEY|@FILE", help="What the others must send.")
def command(names: tuple[str, ...], host: str, port: int, api_key: str | None) -> None:
    """Let other localllms in the network pull models from here, until Ctrl-C.

    Without NAME all models of the store. An address other than one of this machine alone needs a
    key. Models can be read, and nothing else: no prompts, no records.
    """
    key = None if api_key is None else read_keys([api_key])[0]
    if key is None and not is_loopback(host):
        raise ArgumentError(
            f"--host {host[:80]} can be reached from other machines: that needs --api-key",
            "Write a long random one into a file of your own: --api-key @FILE",
        )
    store = Store(paths.current().models)
    shared = [_shared(name) for name in names]
    from localllm.server.share import Share

    try:
        server = Share(store, host, port, key, frozenset(shared) if shared else None)
    except (OSError, OverflowError) as e:
        reason = getattr(e, "strerror", None) or e
        in_use = getattr(e, "errno", None) == errno.EADDRINUSE
        raise FileError(
            f"cannot listen on {host[:80]}:{port}: {reason}",
            "Choose another one with --port, or 0 for any." if in_use else None,
        ) from e
    bound = int(server.server_address[1])
    for name in [str(each) for each in shared] or ["NAME"]:
        address = f"http://{_reachable(host)}:{bound}/{name}"
        output.say(output.escape_line(f"There, type: localllm pull {address}"))
    if key is not None:
        output.say(f"with --api-key @FILE; or set {KEY_VARIABLE}={_reachable(host)}:{bound}=KEY")
    output.say("Ctrl-C ends the share.")
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.5)
    except KeyboardInterrupt:
        output.say(f"\nEnded. {output.size_text(server.served_bytes)} were sent.")
    finally:
        server.shutdown()
        server.server_close()


def _shared(name: str) -> Ref:
    model = find_model(name, may_pull=False).model
    if model is None:
        raise ArgumentError(
            f"{name[:200]} is not a model of the store",
            "Give it a name first: localllm import PATH NAME, or localllm cp SRC DST",
        )
    return model.ref


def _reachable(host: str) -> str:
    """The address as others type it: of 0.0.0.0 that of this machine in its network."""
    try:
        is_any = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host
    if is_any:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(("192.0.2.1", 9))  # of UDP: nothing is sent
                host = str(probe.getsockname()[0])
        except OSError:
            host = socket.gethostname()
    return f"[{host}]" if ":" in host else host
