"""What is written down of requests: a line of JSON each, or nothing.

Nothing that was asked or answered is in any log, and no key: exceptions are told by their kinds and
places, because their words may be somebody's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TextIO

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localllm.server.metrics import Metrics
from localllm.server.security import Access

SAME_FAULT_S = 10.0
_FIELDS = "request"  # the attribute of a log record with the fields of a line

log = logging.getLogger("localllm.requests")


@dataclass
class Tally:
    """What is known of the answers of one HTTP request."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    queued_s: float = 0.0
    first_at_s: float | None = None  # time.monotonic() of the first token
    error: str | None = None  # the code of what ended it


class Formatter(logging.Formatter):
    """Exceptions without their words; as JSON, an object a line."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        where = self.formatException(record.exc_info) if record.exc_info else ""
        if not self._as_json:
            return f"{text}\n{where}" if where else text
        when = datetime.fromtimestamp(record.created, timezone.utc)
        fields: dict[str, Any] = {"time": when.isoformat(timespec="milliseconds")}
        fields |= {"level": record.levelname.lower()}
        fields |= getattr(record, _FIELDS, None) or {"message": text}
        if where:
            fields["where"] = where
        return json.dumps(fields, ensure_ascii=False)

    def formatException(self, ei: Any) -> str:
        kind: type[BaseException] | None = ei[0]
        error: BaseException | None = ei[1]
        frames: TracebackType | None = ei[2]
        if kind is None:
            return ""
        shown = "".join(traceback.format_tb(frames)) + kind.__name__
        before = error and (error.__cause__ or error.__context__)
        if before is None or (error and error.__suppress_context__ and not error.__cause__):
            return shown
        first = self.formatException((type(before), before, before.__traceback__))
        return f"{first}\n\nafter which came:\n\n{shown}"


def install(log_format: str, out: TextIO | None = None) -> logging.Handler:
    """Writes the logs of this process to `out`: by default text to stderr, JSON to stdout."""
    as_json = log_format == "json"
    handler = logging.StreamHandler(out or (sys.stdout if as_json else sys.stderr))
    handler.setFormatter(Formatter(as_json))
    logging.getLogger().addHandler(handler)
    logging.getLogger("localllm").setLevel(logging.INFO if as_json else logging.WARNING)
    return handler


class LoopFaults:
    """The handler of a loop's faults, whose own words show whole exceptions. One that comes again
    and again is written down once in `SAME_FAULT_S`."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, message, now = context.get("exception"), context["message"], loop.time()
        about = f"{message[:40]} {type(error).__name__}"
        if now - self._written_s.get(about, -SAME_FAULT_S) < SAME_FAULT_S:
            return
        if len(self._written_s) > 100:
            self._written_s.clear()
        self._written_s[about] = now
        logging.getLogger("localllm.server").error("%s", message, exc_info=error)


class Recorded:
    """The outermost part of the application: counts answers by route and status, and logs each
    request. Sets state["id"]; others add state["caller"], ["model"], ["error"] and ["tally"]."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access: Access, routes: list[Route]) -> None:
        self._app, self._metrics, self._access, self._routes = app, metrics, access, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["id"] = secrets.token_hex(12)
        began, route, status = time.monotonic(), self._route(scope), None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._metrics.responses[route, status] += 1
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            if status is None:  # the answer is made further out
                status = 500
                self._metrics.responses[route, status] += 1
            raise
        finally:
            self._count(state)
            if log.isEnabledFor(logging.INFO):
                line = self._line(state, route, status, began)
                log.info("request", extra={_FIELDS: line})

    def _count(self, state: dict[str, Any]) -> None:
        tally: Tally | None = state.get("tally")
        key = self._access.name_of(state.get("caller", b""))
        if tally is not None and key is not None:
            self._metrics.key_tokens[key, "prompt"] += tally.prompt_tokens
            self._metrics.key_tokens[key, "cached"] += tally.cached_tokens
            self._metrics.key_tokens[key, "generated"] += tally.generated_tokens

    def _line(
        self, state: dict[str, Any], route: str, status: int | None, began_s: float
    ) -> dict[str, Any]:
        tally: Tally = state.get("tally") or Tally()
        first_at_s = tally.first_at_s
        return {
            "id": state["id"],
            "route": route,
            "status": status,
            "error": tally.error or state.get("error"),
            "model": state.get("model"),
            "key": self._access.name_of(state.get("caller", b"")),
            "prompt_tokens": tally.prompt_tokens,
            "cached_tokens": tally.cached_tokens,
            "generated_tokens": tally.generated_tokens,
            "queued_s": round(tally.queued_s, 6),
            "first_s": None if first_at_s is None else round(first_at_s - began_s, 6),
            "total_s": round(time.monotonic() - began_s, 6),
        }

    def _route(self, scope: Scope) -> str:
        """The route's pattern, so that there are only so many names."""
        path = scope["path"]
        return next((r.path for r in self._routes if r.path_regex.match(path)), "other")
