"""What the routes share: it hangs on the application."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from fastapi import Request as HttpRequest
from starlette.requests import ClientDisconnect

from localllm import paths
from localllm.engine.transcript_files import TranscriptFiles
from localllm.engine.transcripts import Transcripts
from localllm.server import json_body
from localllm.server.lanes import LARGE_BYTES, Check, ClientLeftError, Lanes, client_gone
from localllm.server.manager import Manager
from localllm.server.metrics import Metrics
from localllm.server.models import Lease
from localllm.server.request_group import RequestGroup
from localllm.server.schema import fields, values
from localllm.server.schema.fields import Field
from localllm.server.shapes import Frame, Shape
from localllm.server.shelf import MAX_NAME
from localllm.server.sse import HttpAnswer

MAX_CHOICES = 64
_MAX_NAMED = 20  # ignored fields in a header
_MAX_REMEMBERED = 1000

T = TypeVar("T")
log = logging.getLogger("localllm.server")


def _transcripts() -> Transcripts:
    return Transcripts(files=TranscriptFiles(paths.current().kv))


@dataclass
class ServerState:
    """models: see `Manager`. strict: unknown fields are refused."""

    models: Manager
    strict: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    transcripts: Transcripts = field(default_factory=_transcripts)
    lanes: Lanes = field(default_factory=Lanes)
    _named: set[str] = field(default_factory=set)
    _running: WeakSet[RequestGroup] = field(default_factory=WeakSet)

    def group(self, lease: Lease) -> RequestGroup:
        """For the requests behind one HTTP request."""
        made = RequestGroup(lease.service, self.metrics, lease.shown)
        self._running.add(made)
        return made

    def cut(self) -> None:
        """The server ends: whoever still waits is told so."""
        self.models.end_waits()
        for each in list(self._running):
            each.cut()

    def ignored(self, names: list[str]) -> dict[str, str]:
        """The header that names unknown fields; the log names each once."""
        if not names:
            return {}
        plain = (ascii(name[:60])[1:-1].replace(",", " ") for name in names[:_MAX_NAMED])
        shown = [name.strip() or "''" for name in plain]  # a header ends with no space
        for name in shown:
            if name not in self._named and len(self._named) < _MAX_REMEMBERED:
                self._named.add(name)
                log.warning("the field %s of a request is unknown and was ignored", name)
        return {"x-localllm-ignored": ", ".join(shown)}


@dataclass(frozen=True)
class Asked:
    """A request that has been read: its fields, and what all routes do with them alike."""

    body: Mapping[str, Any]
    headers: dict[str, str]  # of the answer
    lease: Lease
    n: int
    stream: bool
    include_usage: bool
    usage_in_each: bool  # event of the stream, too: only what has come so far
    priority: int
    salt: bytes
    may_store: bool
    truncate: str | None
    token_ids: bool


def state_of(http: HttpRequest) -> ServerState:
    state: ServerState = http.app.state.server
    return state


async def read_object(http: HttpRequest) -> dict[str, Any]:
    """The JSON object in the body."""
    try:
        data = b"".join([part async for part in http.stream()])
    except ClientDisconnect:
        raise ClientLeftError from None
    http.state.n_body_bytes = len(data)
    if len(data) <= LARGE_BYTES:
        return json_body.parse(data)
    return await in_lane(http, lambda check: json_body.parse(data))


async def in_lane(http: HttpRequest, work: Callable[[Check], T]) -> T:
    """What takes long with a request whose body was read, on another thread; see `Lanes`."""
    return await state_of(http).lanes.run(http.receive, http.state.n_body_bytes, work)


async def lease(http: HttpRequest, name: str | None, keep_s: float | None = None) -> Lease:
    """The model of a name; see `Manager.lease`."""
    return await attended(http, state_of(http).models.lease(name, keep_s))


async def attended(http: HttpRequest, work: Coroutine[Any, Any, Lease]) -> Lease:
    """A lease, for which no client waits once it has left."""
    leasing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(client_gone(http.receive))
    try:
        await asyncio.wait({leasing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if leasing.done():
            got = leasing.result()
            http.state.model = got.name
            return got
        raise ClientLeftError
    except BaseException:
        leasing.add_done_callback(_release)
        raise
    finally:
        gone.cancel()
        leasing.cancel()


def _release(leasing: asyncio.Future[Lease]) -> None:
    if not leasing.cancelled() and leasing.exception() is None:
        leasing.result().release()


async def read(http: HttpRequest, table: Mapping[str, Field]) -> Asked:
    """Reads a request by its table of fields. The model's lease is the caller's to release. Raises
    `RequestError`."""
    state, body = state_of(http), await read_object(http)
    headers = state.ignored(fields.unknown(body, table, strict=state.strict))
    headers["x-request-id"] = http.state.id
    n = values.integer(body, "n", 1, 1, MAX_CHOICES)
    stream = values.flag(body, "stream", False)
    options = values.mapping(body, "stream_options")
    include_usage, in_each = (
        values.flag({f"stream_options.{name}": options.get(name)}, f"stream_options.{name}", False)
        for name in ("include_usage", "continuous_usage_stats")
    )
    caching = values.flag(body, "cache_prompt", True)
    salt = http.state.caller + values.text(body, "cache_salt", "", 1024).encode()
    if not caching:
        salt = secrets.token_bytes(32)
    name = values.text(body, "model", "", MAX_NAME) or None
    priority = -values.integer(body, "priority", 0, -(2**31), 2**31 - 1)
    store = values.flag(body, "store", True)
    truncate = values.one_of(body, "truncate", ("start", "middle"))
    token_ids = values.flag(body, "return_token_ids", False)
    keep_s = values.keep_alive(body)
    return Asked(
        body=body,
        headers=headers,
        lease=await lease(http, name, keep_s),
        n=n,
        stream=stream,
        include_usage=include_usage,
        usage_in_each=include_usage and in_each,
        priority=priority,
        salt=hashlib.blake2b(salt, digest_size=32).digest() if salt else b"",
        may_store=caching and store,
        truncate=truncate,
        token_ids=token_ids,
    )


async def answered(
    http: HttpRequest,
    table: Mapping[str, Field],
    answer: Callable[[HttpRequest, Asked], Awaitable[T]],
) -> T:
    """Reads a request and has it answered. Where that fails, its model is let go."""
    asked = await read(http, table)
    try:
        return await answer(http, asked)
    except BaseException:
        asked.lease.release()
        raise


def answer_of(
    state: ServerState,
    asked: Asked,
    group: RequestGroup,
    shape: Shape,
    more: dict[str, Any],
    n_requests: int = 1,
) -> HttpAnswer:
    """The answer of started requests. more: further fields of it."""
    return HttpAnswer(
        group,
        Frame(shape, asked.lease.name, more),
        state.metrics,
        asked.lease.release,
        n=asked.n,
        n_requests=n_requests,
        headers=asked.headers,
        stream=asked.stream,
        include_usage=asked.include_usage,
        usage_in_each=asked.usage_in_each,
    )


def body_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A route's body, for the OpenAPI description."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
