"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from localllm.engine.request import LoadedModel, Request
from localllm.engine.transcripts import Transcribed
from localllm.errors import UnsupportedError
from localllm.server import truncate
from localllm.server.errors import RequestError
from localllm.server.lanes import Check
from localllm.server.schema import conversation, fields, sampling, values
from localllm.server.shapes import ChatShape, Wishes
from localllm.server.sse import HttpAnswer
from localllm.server.state import Asked, answer_of, answered, body_of, in_lane, state_of
from localllm.server.truncate import Fitted
from localllm.text.prompt import Prompt

router = APIRouter()

_SCHEMA = fields.json_schema(fields.CHAT, ["messages"])


@router.post(
    "/v1/chat/completions",
    summary="Answers the last message of a conversation.",
    openapi_extra=body_of(_SCHEMA),
)
async def chat_completions(http: HttpRequest) -> HttpAnswer:
    return await answered(http, fields.CHAT, _answer)


async def _answer(http: HttpRequest, asked: Asked) -> HttpAnswer:
    state, body, service = state_of(http), asked.body, asked.lease.service
    info = service.info
    if info.chat_template is None:
        raise UnsupportedError(
            f"{asked.lease.name} has no chat template: it only continues texts",
            "Use /v1/completions.",
        )
    n_logprobs = sampling.chat_logprobs(body)
    params = sampling.read_params(
        body, asked.lease.defaults, info.tokenizer.n_vocab, logprobs=n_logprobs
    )
    of_prompt = sampling.prompt_logprobs(body)
    with_reasoning = values.flag(body, "include_reasoning", True)
    messages = conversation.messages(body)
    options = conversation.template_options(body, info.chat_template)
    limit = truncate.room(info.n_ctx, params.max_tokens)

    transcripts, partition = state.transcripts, info.partition + asked.salt

    def render(check: Check) -> tuple[Fitted[Prompt], Transcribed]:
        fitted = _prompt(info, messages, options, asked.truncate, limit, check)
        transcribed = transcripts.ids_of(
            fitted.value, partition, keep=asked.may_store, model=info.kept_digest
        )
        return fitted, transcribed

    fitted, transcribed = await in_lane(http, render)
    prompt, ids, headers = fitted.value, transcribed.ids, asked.headers
    if transcribed.changed_at is not None:
        headers["x-localllm-changed-at"] = str(transcribed.changed_at)
    if fitted.cut is not None:
        headers["x-localllm-truncated"] = fitted.cut.header()
    if prompt.repairs:
        headers["x-localllm-repaired"] = ascii("; ".join(prompt.repairs))[1:-1][:1000].strip()
    request = Request(
        prompt=ids,
        params=params,
        n=asked.n,
        priority=asked.priority,
        salt=asked.salt,
        may_store=asked.may_store,
        reasoning=info.chat_template.reasoning,
        opened=prompt.opens_reasoning,
        prompt_logprobs=of_prompt,
    )
    told = partial(transcripts.add_answer, transcribed) if asked.may_store else None
    group = state.group(asked.lease)
    group.start([request], told, whole=not asked.stream)
    wishes = Wishes(
        tokenizer=info.tokenizer,
        logprobs=n_logprobs,
        reasoning=with_reasoning,
        token_ids=asked.token_ids,
        prompt_logprobs=of_prompt,
        n=asked.n,
    )
    more: dict[str, Any] = {}
    if fitted.cut is not None:
        more["truncated"] = fitted.cut.document()
    if asked.token_ids:
        more["prompt_token_ids"] = list(ids)
    return answer_of(state, asked, group, ChatShape(wishes), more)


def _prompt(
    info: LoadedModel,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    side: str | None,
    limit: int,
    check: Check,
) -> Fitted[Prompt]:
    template = info.chat_template
    assert template is not None  # the caller looked

    def rendered(some: Sequence[Mapping[str, Any]]) -> Prompt:
        check()
        return template.prompt(some, **options)

    try:
        if side is None:
            prompt = rendered(messages)
            truncate.check_length(prompt.text, info.n_ctx)
            return Fitted(prompt, None)
        return truncate.fit_messages(
            messages, rendered, lambda prompt: truncate.n_tokens(prompt, info.n_ctx), limit, side
        )
    except RecursionError:
        raise RequestError("messages are nested too deeply", param="messages") from None
