"""Listening: uvicorn with our limits on connections, and an end that lets answers finish.

A request's header must be complete in `HEADER_S`, and a client must read within `WRITE_S`: else
its connection is cut, so that slow clients hold nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from localllm.errors import FileError
from localllm.server import errors
from localllm.server.errors import RequestError
from localllm.server.security import MAX_HEADER_BYTES

HEADER_S = 20.0
WRITE_S = 60.0
IDLE_S = 75.0  # between two requests of a connection
DRAIN_S = 30.0
LAST_S = 2.0  # of these, for what still runs to say that it was cut short
MAX_CONNECTIONS = 512
REFUSED_S = 2.0  # for the request of a connection that is one too many
ABRUPT = 16  # so many more may wait to be told so; further ones are cut at once
BACKLOG = 64  # asyncio takes so many in one go
OWN_FILES = 48  # for models, the cache and logs


log = logging.getLogger("localllm.server")


@dataclass(frozen=True)
class Tls:
    """Files in PEM format."""

    certificate: str
    key: str | None = None

    def check(self) -> None:
        """Raises `FileError` for files that cannot be used."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except OSError as e:  # ssl's own is one
            said = getattr(e, "strerror", None) or e
            raise FileError(f"cannot use the TLS files: {said}") from e


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with the limits above; what is no HTTP gets an error in our shape, and so does who
    comes when there are `max_connections` already."""

    max_connections = MAX_CONNECTIONS
    _too_many = False
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._too_many = len(self.connections) > self.max_connections
        if len(self.connections) > self.max_connections + ABRUPT:
            transport.abort()
            return
        limit_s = REFUSED_S if self._too_many else HEADER_S
        self._header_timer = self.loop.call_later(limit_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._too_many:
            self._refuse(
                RequestError(
                    f"there are {self.max_connections} connections already",
                    "Ask again later, or start the server with a larger --max-connections.",
                    code="too_many_connections",
                    status=503,
                    type="server_error",
                    headers={"retry-after": "1"},
                )
            )
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _stop(self._header_timer)
            self._header_timer = None
        elif self._header_timer is None and self.conn.trailing_data[0]:
            self._header_timer = self.loop.call_later(HEADER_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._header_timer)
        _stop(self._write_timer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        _stop(self._write_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer
            return
        self._refuse(RequestError("the request is no valid HTTP", code="bad_request"))

    def _refuse(self, error: RequestError) -> None:
        """Answers before there is a request, and ends the connection."""
        body = errors.body(error)
        headers = [("content-type", "application/json"), ("connection", "close")]
        headers += [("content-length", str(len(body))), *error.headers.items()]
        start = h11.Response(status_code=error.kind.status, headers=headers)
        parts: list[Any] = [start, h11.Data(data=body)]
        for part in [*parts, h11.EndOfMessage()]:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Port 0 is any free one. Raises `FileError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(512)
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError, UnicodeError) as e:
        reason = getattr(e, "strerror", None) or e
        raise FileError(
            f"cannot listen on {host[:80]}:{port}: {reason}",
            "Check --host: it is an address or a name of this machine."
            if isinstance(e, socket.gaierror) or getattr(e, "errno", 0) == errno.EADDRNOTAVAIL
            else "Choose another port with --port, or 0 for any.",
        ) from e
    return listening


class Server(uvicorn.Server):
    """Ends with SIGINT or SIGTERM. Answers then have `DRAIN_S` to finish; `cut` is called when
    nearly all of it is over."""

    def __init__(self, config: uvicorn.Config, cut: Callable[[], None]) -> None:
        super().__init__(config)
        self._cut = cut

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(DRAIN_S - LAST_S, self._cut)
        await super().shutdown(sockets)
        timer.cancel()


def server(
    app: ASGIApp,
    tls: Tls | None = None,
    *,
    max_connections: int = MAX_CONNECTIONS,
    cut: Callable[[], None] = lambda: None,
) -> Server:
    """What serves the application: `run(sockets=[...])`. Raises `FileError` for TLS files."""
    limit = {"max_connections": _fitting(max_connections)}
    config = uvicorn.Config(
        app,
        http=type("Protocol", (GuardedProtocol,), limit),
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=int(DRAIN_S),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    if tls is not None:
        tls.check()
    config.load()
    return Server(config, cut)


def _fitting(max_connections: int) -> int:
    """As many connections as this process may have files for. Raises `FileError` if there are none:
    accepting would fail again and again."""
    if sys.platform == "win32":
        return max_connections
    import resource

    reserve = OWN_FILES + BACKLOG + ABRUPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + reserve
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return max_connections
    if soft <= reserve:
        raise FileError(
            f"this process may have {soft} open files, a server needs more than {reserve}",
            "Raise the limit: ulimit -n 1024",
        )
    log.warning("%d connections at once: there may be %d open files", soft - reserve, soft)
    return soft - reserve


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
