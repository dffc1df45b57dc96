"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from localllm.engine.request import LoadedModel, Request
from localllm.engine.transcripts import Asked as Transcribed
from localllm.errors import ArgumentError, UnsupportedError
from localllm.server import truncate
from localllm.server.errors import RequestError
from localllm.server.lanes import Check
from localllm.server.schema import fields, sampling, values
from localllm.server.shapes import ChatShape, Wishes
from localllm.server.sse import HttpAnswer
from localllm.server.state import Asked, answer_of, answered, body_of, in_lane, state_of
from localllm.server.truncate import Fitted
from localllm.text.chat_template import SYSTEM_TEXT, ChatTemplate
from localllm.text.prompt import Prompt
from localllm.text.thinking_switch import THINK_LEVELS, thinking_options

router = APIRouter()

MAX_MESSAGES = 4096
_EFFORTS = ("none", *THINK_LEVELS, "xhigh")
_PARTS_NOT_SERVED = "only text is served yet"
#: What the server says itself to a template.
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", SYSTEM_TEXT)

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
    messages = _messages(body)
    effort = values.one_of(body, "reasoning_effort", _EFFORTS)
    variables = values.mapping(body, "chat_template_kwargs")
    for name in variables:
        if name in _OWN_VARIABLES:
            raise RequestError(
                f"chat_template_kwargs may not set {name}", param="chat_template_kwargs"
            )
    limit = truncate.room(info.n_ctx, params.max_tokens)

    transcripts, partition = state.transcripts, info.partition + asked.salt

    def render(check: Check) -> tuple[Fitted[Prompt], Transcribed]:
        options = {**_thinking(info.chat_template, effort), **variables}
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
    answering = state.answering(asked.lease)
    answering.start([request], told)
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
    return answer_of(state, asked, answering, ChatShape(wishes), more)


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


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages, which hold nothing but text. The template's own checks come later."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise values.wrong("messages", messages, "a list of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(
            f"there are {len(messages):,} messages, at most {MAX_MESSAGES:,} are read",
            param="messages",
        )
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise values.wrong(f"messages[{i}]", message, "an object")
        if message.get("images"):
            raise _not_served(f"messages[{i}].images")
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else []):
            where = f"messages[{i}].content[{j}]"
            if not isinstance(part, dict):
                raise values.wrong(where, part, "an object")
            if part.get("type") not in ("text", "refusal"):
                raise _not_served(where)
            if not isinstance(part.get("text", part.get("refusal")), str):
                raise values.wrong(f"{where}.text", part.get("text"), "a text")
        if isinstance(content, dict):
            raise values.wrong(f"messages[{i}].content", content, "a text or a list of parts")
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise values.wrong(f"messages[{i}].tool_calls", calls, "a list")
    return messages


def _not_served(where: str) -> RequestError:
    return RequestError(
        f"{where} is not supported: {_PARTS_NOT_SERVED}", param=where, code="unsupported_parameter"
    )


def _thinking(template: ChatTemplate | None, effort: str | None) -> dict[str, Any]:
    """The template's variables for an effort. An effort between the model's levels counts as the
    nearest thing that it can be told: to reason."""
    if effort is None or template is None or template.reasoning is None:
        return {}
    if effort == "none":
        options = thinking_options(template, False)
        if options is None:
            raise RequestError(
                "reasoning_effort none: this model cannot be told not to reason",
                "include_reasoning false leaves its reasoning out of the answer.",
                param="reasoning_effort",
            )
        return options
    level = "max" if effort == "xhigh" else effort
    for think in (level, True):
        options = thinking_options(template, think)
        if options is not None:
            return options
    raise ArgumentError("reasoning_effort: this model cannot be told to reason")
