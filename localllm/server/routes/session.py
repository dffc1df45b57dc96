"""What `localllm run` asks a server of the same user: the answers of a session, as a session gives
them. It is no API for others: both sides are of one version.

An answer comes as lines of JSON: the prompt, chunks, and in the end the counts, or an error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.types import Send

from localllm.engine.request import Finished, LoadedModel, Piece
from localllm.engine.transcripts import Transcripts
from localllm.errors import ArgumentError, CancelledError, LocalLLMError
from localllm.params import GenerateParams
from localllm.server import session_request
from localllm.server.metrics import Metrics
from localllm.server.models import Lease
from localllm.server.request_group import RequestGroup
from localllm.server.routes.control import only_here
from localllm.server.schema import values
from localllm.server.session_request import SessionRequest
from localllm.server.sse import EVENTS, Watched, stream
from localllm.server.state import attended, in_lane, read_object, state_of

router = APIRouter(prefix="/localllm", include_in_schema=False)
_LONGEST = 1 << 20


@router.post("/session")
async def session(http: HttpRequest) -> dict[str, Any]:
    """What a session says of itself; the model is loaded if need be."""
    only_here(http)
    lease = await _lease(http, await read_object(http))
    try:
        info = lease.service.info
        kept_at = lease.service.kept_at(http.state.caller)
        return {
            "info": session_request.about(info),
            "digest": info.digest,
            "engine_version": info.engine_version,
            "arithmetic": info.arithmetic,
            "kv_type": info.kv_type,
            "kept_at": None if kept_at is None else dataclasses.asdict(kept_at),
        }
    finally:
        lease.release()


@router.post("/answer")
async def answer(http: HttpRequest) -> Lines:
    """messages or prompt, params, think, store, go_on."""
    only_here(http)
    body = await read_object(http)
    lease = await _lease(http, body)
    try:
        state, info = state_of(http), lease.service.info
        transcripts = state.transcripts
        asked = await in_lane(
            http, lambda check: _request(info, body, http.state.caller, transcripts)
        )
        group, told = state.group(lease), None
        if asked.transcribed is not None:
            told = partial(transcripts.add_answer, asked.transcribed)
        group.start([asked.request], told, whole=False)
    except BaseException:
        lease.release()
        raise
    return Lines(group, state.metrics, lease.release, asked)


async def _lease(http: HttpRequest, body: Mapping[str, Any]) -> Lease:
    path = values.text(body, "path", "", 4096)
    beside = values.text(body, "beside", "", _LONGEST) if body.get("beside") else ""
    return await attended(http, state_of(http).models.lease_file(Path(path), beside))


def _request(
    info: LoadedModel, body: Mapping[str, Any], salt: bytes, transcripts: Transcripts
) -> SessionRequest:
    params = _params(values.text(body, "params", "{}", _LONGEST))
    may_store = values.flag(body, "store", True)
    if "prompt" in body:
        prompt = values.text(body, "prompt", "", _LONGEST * 16)
        return session_request.to_complete(info, prompt, params, salt, may_store=may_store)
    messages = body.get("messages")
    if info.chat_template is not None and (not isinstance(messages, list) or not messages):
        raise values.wrong("messages", messages, "a list of at least one message")
    return session_request.to_answer(
        info, messages or [], params, body.get("think"), salt, transcripts,
        may_store=may_store, go_on=values.flag(body, "go_on", False),
    )  # fmt: skip


def _params(text: str) -> GenerateParams:
    """As text, because JSON has no infinity."""
    try:
        return GenerateParams(**json.loads(text))
    except (TypeError, ValueError, RecursionError):
        raise ArgumentError("params has a wrong form") from None


class Lines(Watched):
    """An answer as lines of JSON."""

    def __init__(
        self,
        group: RequestGroup,
        metrics: Metrics,
        release: Callable[[], None],
        asked: SessionRequest,
    ) -> None:
        super().__init__(group, metrics, release, {})
        self._asked = asked

    async def work(self, send: Send) -> None:
        await stream(send, self._lines(), {**EVENTS, "content-type": "application/x-ndjson"})

    async def _lines(self) -> AsyncIterator[bytes]:
        asked = self._asked
        yield _line(
            prompt_ids=asked.request.prompt,
            opened=asked.request.opened,
            notes=asked.notes,
        )
        try:
            async for _, event in self._group.events():
                if isinstance(event, Finished):
                    usage, timings = dataclasses.asdict(event.usage), event.timings
                    yield _line(usage=usage, timings=dataclasses.asdict(timings))
                elif not isinstance(event, Piece):
                    continue
                elif event.chunk.finish_reason == "cancelled":
                    raise CancelledError("the answer was cut short: the server is stopping")
                else:
                    yield _line(chunk=dataclasses.asdict(event.chunk))
        except Exception as e:
            kind = self.noted(e)
            message = e.message if isinstance(e, LocalLLMError) else "a fault in the server"
            hint = e.hint if isinstance(e, LocalLLMError) else None
            yield _line(error={"code": kind.code, "message": message, "hint": hint})


def _line(**document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"
