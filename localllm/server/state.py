"""What the routes share: it hangs on the application."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request as HttpRequest

from localllm.engine.transcripts import Transcripts
from localllm.server import json_body
from localllm.server.metrics import Metrics
from localllm.server.models import Lease, Models
from localllm.server.schema import fields, values
from localllm.server.schema.fields import Field

MAX_CHOICES = 64
_MAX_NAMED = 20  # ignored fields in a header
_MAX_REMEMBERED = 1000
_LONGEST_NAME = 512

log = logging.getLogger("localllm.server")


@dataclass
class ServerState:
    """models: see `Models`. strict: unknown fields are refused."""

    models: Models
    strict: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    transcripts: Transcripts = field(default_factory=Transcripts)
    _named: set[str] = field(default_factory=set)

    def ignored(self, names: list[str]) -> dict[str, str]:
        """The header that names unknown fields; the log names each once."""
        if not names:
            return {}
        shown = [ascii(name[:60])[1:-1].replace(",", " ") for name in names[:_MAX_NAMED]]
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
    return json_body.parse(await http.body())


async def read(http: HttpRequest, table: Mapping[str, Field]) -> Asked:
    """Reads a request by its table of fields. The model's lease is the caller's to release. Raises
    `RequestError`."""
    state, body = state_of(http), await read_object(http)
    headers = state.ignored(fields.unknown(body, table, strict=state.strict))
    headers["x-request-id"] = secrets.token_hex(12)
    n = values.integer(body, "n", 1, 1, MAX_CHOICES)
    stream = values.flag(body, "stream", False)
    options = values.mapping(body, "stream_options")
    usage_name = "stream_options.include_usage"
    include_usage = values.flag({usage_name: options.get("include_usage")}, usage_name, False)
    caching = values.flag(body, "cache_prompt", True)
    salt = http.state.caller + values.text(body, "cache_salt", "", 1024).encode()
    if not caching:
        salt = secrets.token_bytes(32)
    name = values.text(body, "model", "", _LONGEST_NAME) or None
    priority = -values.integer(body, "priority", 0, -(2**31), 2**31 - 1)
    store = values.flag(body, "store", True)
    truncate = values.one_of(body, "truncate", ("start", "middle"))
    token_ids = values.flag(body, "return_token_ids", False)
    return Asked(
        body=body,
        headers=headers,
        lease=await state.models.lease(name),
        n=n,
        stream=stream,
        include_usage=include_usage,
        priority=priority,
        salt=hashlib.blake2b(salt, digest_size=32).digest() if salt else b"",
        may_store=caching and store,
        truncate=truncate,
        token_ids=token_ids,
    )
