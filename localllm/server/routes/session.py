"""What `localllm run` asks a server of the same user: the answers of a session, as a session gives
them. It is no API for others: both sides are of one version.

An answer comes as lines of JSON: the prompt, chunks, and in the end the counts, or an error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.types import Send

from localllm.engine.request import Finished, LoadedModel, Request
from localllm.engine.transcripts import Asked as Transcribed
from localllm.engine.transcripts import Transcripts
from localllm.errors import ArgumentError, CancelledError, LocalLLMError, UnsupportedError
from localllm.params import GenerateParams
from localllm.server import truncate
from localllm.server.answering import Answering
from localllm.server.metrics import Metrics
from localllm.server.models import Lease
from localllm.server.routes.control import only_here
from localllm.server.schema import values
from localllm.server.sse import EVENTS, Watched, stream
from localllm.server.state import attended, in_lane, read_object, state_of
from localllm.text.thinking_switch import switched

router = APIRouter(prefix="/localllm", include_in_schema=False)
_LONGEST = 1 << 20


@dataclass(frozen=True)
class Asked:
    """A request, and what the client is told of its prompt."""

    request: Request
    notes: tuple[str, ...] = ()
    transcribed: Transcribed | None = None


@router.post("/session")
async def session(http: HttpRequest) -> dict[str, Any]:
    """What a session says of itself; the model is loaded if need be."""
    only_here(http)
    lease = await _lease(http, await read_object(http))
    try:
        info = lease.service.info
        template = info.chat_template
        return {
            "info": {
                "engine": info.engine,
                "architecture": info.architecture,
                "isa": info.isa,
                "n_threads": info.n_threads,
                "n_ctx": info.n_ctx,
                "n_params": info.n_params,
                "weight_bytes": info.weight_bytes,
                "kv_bytes": info.kv_bytes,
                "description": f"{info.title} {info.quantization}".strip(),
                "template": template.origin if template is not None else None,
                "can_think": template is not None and template.reasoning is not None,
                "recommended": dict(info.recommended),
            },
            "digest": info.digest,
            "engine_version": info.engine_version,
            "arithmetic": info.arithmetic,
            "kv_type": info.kv_type,
        }
    finally:
        lease.release()


@router.post("/answer")
async def answer(http: HttpRequest) -> Lines:
    """messages or prompt, params, think."""
    only_here(http)
    body = await read_object(http)
    lease = await _lease(http, body)
    try:
        state, info = state_of(http), lease.service.info
        transcripts = state.transcripts
        asked = await in_lane(
            http, lambda check: _request(info, body, http.state.caller, transcripts)
        )
        answering, told = state.answering(lease.service), None
        if asked.transcribed is not None:
            told = partial(transcripts.add_answer, asked.transcribed)
        answering.start([asked.request], told)
    except BaseException:
        lease.release()
        raise
    return Lines(answering, state.metrics, lease.release, asked)


async def _lease(http: HttpRequest, body: Mapping[str, Any]) -> Lease:
    path = values.text(body, "path", "", 4096)
    beside = values.text(body, "beside", "", _LONGEST) if body.get("beside") else ""
    return await attended(http, state_of(http).models.lease_file(Path(path), beside))


def _request(
    info: LoadedModel, body: Mapping[str, Any], salt: bytes, transcripts: Transcripts
) -> Asked:
    params = _params(values.text(body, "params", "{}", _LONGEST))
    if "prompt" in body:
        text = values.text(body, "prompt", "", _LONGEST * 16)
        truncate.check_length(text, info.n_ctx)
        ids = info.tokenizer.encode(text, True)
        return Asked(Request(_some(ids), params, salt=salt))
    template = info.chat_template
    if template is None:
        raise UnsupportedError(info.no_template)
    options, notes = switched(template, body.get("think"))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise values.wrong("messages", messages, "a list of at least one message")
    prompt = template.prompt(messages, **options)
    truncate.check_length(prompt.text, info.n_ctx)
    partition = info.digest.encode() + salt
    transcribed = transcripts.ids_of(prompt, partition, model=info.kept_digest)
    request = Request(
        _some(transcribed.ids),
        params,
        salt=salt,
        reasoning=template.reasoning,
        opened=prompt.opens_reasoning,
    )
    return Asked(request, (*notes, *prompt.repairs), transcribed)


def _params(text: str) -> GenerateParams:
    """As text, because JSON has no infinity."""
    try:
        return GenerateParams(**json.loads(text))
    except (TypeError, ValueError, RecursionError):
        raise ArgumentError("params has a wrong form") from None


def _some(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise ArgumentError("the prompt is empty", "give at least one character")
    return tuple(ids)


class Lines(Watched):
    """An answer as lines of JSON."""

    def __init__(
        self, answering: Answering, metrics: Metrics, release: Callable[[], None], asked: Asked
    ) -> None:
        super().__init__(answering, metrics, release, {})
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
            async for _, event in self._answering.events():
                if isinstance(event, Finished):
                    usage, timings = dataclasses.asdict(event.usage), event.timings
                    yield _line(usage=usage, timings=dataclasses.asdict(timings))
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
