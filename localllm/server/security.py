"""Who may ask: the Host and Origin of every request, keys, and what a body may be.

A web page can make a browser send requests to this machine, and by DNS rebinding it can make them
look as if they went to its own host. So the Host must be a name of this machine, and an Origin one
that is trusted; both are looked at before any route is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localllm.server import errors
from localllm.server.errors import RequestError
from localllm.store.identifiers import is_loopback

MAX_BODY_BYTES = 8 << 20
MAX_HELD_BYTES = 4 * MAX_BODY_BYTES  # of the bodies of all requests that are answered
MAX_HEADER_BYTES = 64 << 10
BODY_CHUNK_S = 20.0  # the longest wait for more of a body
BODY_S = 120.0  # for all of it
DRAIN_BYTES, DRAIN_S = 8 * MAX_BODY_BYTES, 5.0  # of a body that is too large, see `_drain`
PUBLIC = frozenset({"/health", "/v1/health"})
"""Paths that need no key."""
OWN = b"\xff own"
"""The caller that programs of the same user are. Their key is another one at each start, and still
what is kept of their conversations is found. It is no key's digest, and no text of a client."""
_APP_SCHEMES = frozenset({"app", "tauri", "vscode-webview", "vscode-file"})
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_,\- ]{1,2000}")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Access:
    """What is allowed. host: the address listened on; keys: none is asked for if there are none;
    key_names: as many, "" for a key without one; origins: trusted ones beside those of this
    machine, `*` as the port is any port; hosts: further names that this machine has. own_key: of
    programs of the same user; beside keys only."""

    host: str = "127.0.0.1"
    keys: tuple[str, ...] = ()
    key_names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    own_key: str = ""
    _callers: tuple[tuple[bytes, bytes], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digests = [_digest(key) for key in self.keys]
        own = [(_digest(self.own_key), OWN)] if self.own_key else []
        object.__setattr__(self, "_callers", (*zip(digests, digests, strict=True), *own))

    def caller(self, sent: str) -> bytes | None:
        """Who sent a key: the digest of one of ours, or `OWN`. Takes as long for any."""
        digest, found = _digest(sent), None
        for known, who in self._callers:
            found = who if hmac.compare_digest(digest, known) else found
        return found

    def name_of(self, caller: bytes) -> str | None:
        """What log and metrics call a caller: never by the key."""
        if caller == OWN:
            return "localllm"
        known = [each for each, _ in self._callers]
        if caller not in known:
            return None
        number = known.index(caller)
        name = self.key_names[number] if number < len(self.key_names) else ""
        return name or f"key {number + 1}"

    def knows_host(self, name: str) -> bool:
        """Whether a Host, without its port, is a name of this machine."""
        name = name.lower().rstrip(".")
        if name in (each.lower() for each in (self.host, *self.hosts)):
            return True
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return not is_loopback(self.host) and name == socket.gethostname().lower()
        # Other addresses are only asked for where this machine can be reached by them.
        return address.is_loopback or not is_loopback(self.host)

    def trusts_origin(self, origin: str, host: str) -> bool:
        """Whether pages of an origin may ask; `host` is the Host header."""
        for known in self.origins:
            if origin == known or (known.endswith(":*") and _without_port(origin) == known[:-2]):
                return True
        try:
            parts = urlsplit(origin)
            name, scheme = parts.hostname or "", parts.scheme
            parts.port  # noqa: B018 raises for one that is no number
        except ValueError:
            return False
        if scheme in _APP_SCHEMES:
            return True
        if scheme not in ("http", "https") or parts.path or parts.query or "@" in origin:
            return False
        return is_loopback(name) or parts.netloc.lower() == host.lower()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _without_port(origin: str) -> str:
    head, _, port = origin.rpartition(":")
    return head if _PORT.fullmatch(port) else origin


class Guard:
    """The part of the application inside `Recorded`. Sets state["caller"]: see `Access.caller`
    (empty without keys)."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access, self._held = app, access, _Held()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            _check_size(scope)
            origin = self._checked_origin(scope, headers)
            allowed = _cors(origin) if origin else []
            if scope["method"] == "OPTIONS" and headers.get("access-control-request-method"):
                await _send(send, 204, b"", [*allowed, *_preflight(headers)])
                return
        except RequestError as e:
            await _refuse(send, e, [])
            return
        try:
            scope.setdefault("state", {})["caller"] = self._caller(scope, headers)
            self._check_body(scope, headers)
        except RequestError as e:
            too_large = e.kind.status == 413 and "expect" not in headers
            await _refuse(send, e, allowed, receive if too_large else None)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and allowed:
                message = {**message, "headers": [*message.get("headers", []), *allowed]}
            await send(message)

        body = _Body(receive, self._access.max_body_bytes, self._held)
        try:
            await self._app(scope, body.receive, sending)
        finally:
            self._held.n_bytes -= body.n_bytes

    def _checked_origin(self, scope: Scope, headers: Headers) -> str | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.knows_host(_host_name(hosts[0])):
            shown = hosts[0][:80] if len(hosts) == 1 else f"{len(hosts)} of them"
            raise _forbidden(
                f"the Host {shown!a} is no name of this machine",
                "Start the server with --allowed-host to add one.",
                "forbidden_host",
            )
        origins = headers.getlist("origin")
        if not origins:
            # A picture or script of another site's page: a browser says so, and sends no Origin.
            foreign = headers.get("sec-fetch-site") == "cross-site"
            if foreign and headers.get("sec-fetch-mode") != "navigate":
                raise _forbidden("requests of other sites are not answered", None, "forbidden")
            return None
        if len(origins) != 1 or not self._access.trusts_origin(origins[0], hosts[0]):
            raise _forbidden(
                f"the web page {origins[0][:80]!a} may not ask this server",
                "Start the server with --cors-origin to allow it.",
                "forbidden_origin",
            )
        return origins[0]

    def _caller(self, scope: Scope, headers: Headers) -> bytes:
        if not self._access.keys:
            return b""
        sent = headers.get("authorization", "")
        bearer = sent[7:].strip() if sent[:7].lower() == "bearer " else ""
        caller = self._access.caller(bearer or headers.get("x-api-key", ""))
        if caller is None and scope["path"] not in PUBLIC:
            raise RequestError(
                "the API key is missing or wrong",
                "Send it as: Authorization: Bearer KEY",
                code="invalid_api_key",
                status=401,
                type="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )
        return caller or b""

    def _check_body(self, scope: Scope, headers: Headers) -> None:
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(
                f"the Content-Type is {kind[:80]!a}, expected 'application/json'",
                code="unsupported_media_type",
                status=415,
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(
                "compressed bodies are not read", code="unsupported_media_type", status=415
            )
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 19:
            raise RequestError("the Content-Length is no number", code="invalid_header")
        if int(length) > self._access.max_body_bytes:
            raise _too_large(self._access.max_body_bytes)


@dataclass
class _Held:
    """The bodies of all requests that are answered."""

    n_bytes: int = 0


class _Body:
    """Counts and times what comes of a body. All limits raise `RequestError`."""

    def __init__(self, receive: Receive, max_bytes: int, held: _Held) -> None:
        self._receive, self._max_bytes, self._held = receive, max_bytes, held
        self.n_bytes, self._complete = 0, False
        self._end_s = asyncio.get_running_loop().time() + BODY_S

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()  # what comes now is the end of the connection
        wait_s = min(BODY_CHUNK_S, self._end_s - asyncio.get_running_loop().time())
        try:
            message = await asyncio.wait_for(self._receive(), max(wait_s, 0))
        except asyncio.TimeoutError:
            raise RequestError(
                "the body did not come in time", code="timeout", status=408, headers=_CLOSE
            ) from None
        n_bytes = len(message.get("body", b""))
        self.n_bytes += n_bytes
        self._held.n_bytes += n_bytes
        if self.n_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        if self._held.n_bytes > MAX_HELD_BYTES:
            raise RequestError(
                f"requests of more than {MAX_HELD_BYTES:,} bytes are answered at the moment",
                "Ask again later.",
                code="too_many_large_bodies",
                status=503,
                type="server_error",
                headers={"retry-after": "1", **_CLOSE},
            )
        self._complete = not message.get("more_body", False)
        return message


_CLOSE = {"connection": "close"}


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the body has more than {limit:,} bytes", code="too_large", status=413, headers=_CLOSE
    )


def _forbidden(message: str, hint: str | None, code: str) -> RequestError:
    return RequestError(message, hint, code=code, status=403, type="permission_error")


def _host_name(host: str) -> str:
    """A Host without its port; "" for what is none."""
    name, _, port = host.rpartition(":")
    if name and not name.endswith("]") and ":" in name:
        return ""  # an IPv6 address needs brackets
    if name and _PORT.fullmatch(port):
        return name
    return "" if ":" in host and not host.endswith("]") else host


def _check_size(scope: Scope) -> None:
    """What came in one piece has passed the limit of the parser, which counts what it keeps."""
    n_bytes = len(scope["raw_path"]) + len(scope["query_string"])
    n_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
    if n_bytes > MAX_HEADER_BYTES:
        raise RequestError(
            f"the header has {n_bytes:,} bytes, at most {MAX_HEADER_BYTES:,} are read",
            code="too_large",
            status=431,
            headers=_CLOSE,
        )


Raw = list[tuple[bytes, bytes]]

#: Headers of answers that a page may read.
_SHOWN = (
    "retry-after",
    "x-request-id",
    "x-localllm-changed-at",
    "x-localllm-ignored",
    "x-localllm-repaired",
    "x-localllm-truncated",
)


def _cors(origin: str) -> Raw:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", ", ".join(_SHOWN).encode()),
        (b"vary", b"Origin"),
    ]


def _preflight(headers: Headers) -> Raw:
    asked = headers.get("access-control-request-headers", "")
    raw: Raw = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-max-age", b"600"),
    ]
    if _HEADER_NAMES.fullmatch(asked):
        raw.append((b"access-control-allow-headers", asked.encode()))
    if headers.get("access-control-request-private-network") == "true":
        raw.append((b"access-control-allow-private-network", b"true"))
    return raw


async def _refuse(
    send: Send, error: RequestError, allowed: Raw, drained: Receive | None = None
) -> None:
    more = [(k.encode(), v.encode("latin-1")) for k, v in errors.headers(error).items()]
    kind = (b"content-type", b"application/json")
    await _send(send, error.kind.status, errors.body(error), [kind, *more, *allowed], drained)


async def _send(
    send: Send, status: int, body: bytes, headers: Iterable[Any], drained: Receive | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    raw = list(headers) if status == 204 else [*headers, length]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    if drained is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_drain(drained), DRAIN_S)
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive) -> None:
    """Takes a body that nobody wants. Who sends all of it before reading would see a connection
    that is reset, and not the answer, if it were closed with some of that unread."""
    n_bytes = 0
    while n_bytes < DRAIN_BYTES:
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
