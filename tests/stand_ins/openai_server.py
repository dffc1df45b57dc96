"""A loopback server with OpenAI's API that answers by a script, and misbehaves where it says so."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Part = bytes | threading.Event
"""Bytes to send, or an event to wait for, some seconds at the most."""
WAIT_S = 30.0


@dataclass
class Script:
    """answers: of POSTs, in order; the last one repeats. models: the answer to GET /v1/models.
    Each is a head and what follows, part by part; then the connection is closed."""

    answers: list[Sequence[Part]] = field(default_factory=list)
    models: bytes = b""
    asked: list[dict[str, Any]] = field(default_factory=list)  # the JSON of POSTs
    heads: list[str] = field(default_factory=list)  # of all requests
    gone: threading.Event = field(default_factory=threading.Event)  # a client hung up
    url: str = ""


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", "connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


DONE = b"data: [DONE]\n\n"


@contextlib.contextmanager
def scripted(answers: list[Sequence[Part]], models: bytes = b"") -> Iterator[Script]:
    """The server, until the block ends."""
    script = Script(answers, models)
    with socket.create_server(("127.0.0.1", 0)) as server:
        script.url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=_answer, args=(connection, script), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield script
        over.set()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)


def _answer(connection: socket.socket, script: Script) -> None:
    with connection, contextlib.suppress(OSError), connection.makefile("rb") as file:
        lines = []
        while (line := file.readline().decode().strip()) != "":
            lines.append(line)
        script.heads.append("\n".join(lines))
        if not lines:
            return  # a client that only looked whether somebody listens
        if lines[0].startswith("GET"):
            connection.sendall(script.models)
            return
        sizes = [line.split(":")[1] for line in lines if line.lower().startswith("content-length")]
        script.asked.append(json.loads(file.read(int(sizes[0]))))
        watched = threading.Thread(target=_watch, args=(file, script), daemon=True)
        watched.start()
        for part in script.answers[min(len(script.asked), len(script.answers)) - 1]:
            if isinstance(part, threading.Event):
                ends = time.monotonic() + WAIT_S
                while not part.wait(0.01) and time.monotonic() < ends and watched.is_alive():
                    pass
            else:
                connection.sendall(part)
        connection.shutdown(socket.SHUT_RDWR)


def _watch(file: Any, script: Script) -> None:
    with contextlib.suppress(OSError, ValueError):
        if not file.read(1):
            script.gone.set()
