"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from localllm.engine.request import Request
from localllm.server import truncate
from localllm.server.errors import RequestError
from localllm.server.lanes import Check
from localllm.server.schema import fields, sampling, values
from localllm.server.shapes import TextShape, Wishes
from localllm.server.sse import HttpAnswer
from localllm.server.state import (
    MAX_CHOICES,
    Asked,
    answer_of,
    answered,
    body_of,
    in_lane,
    state_of,
)
from localllm.server.text_logprobs import echoed
from localllm.server.truncate import Fitted
from localllm.text.tokenizer import Tokenizer

router = APIRouter()

DEFAULT_MAX_TOKENS = 16
"""As OpenAI documents it for this route."""

_SCHEMA = fields.json_schema(fields.COMPLETIONS, ["prompt"])
_PROMPTS = "a text, a list of token ids, or a list of these"


@router.post(
    "/v1/completions",
    summary="Goes on with a text.",
    openapi_extra=body_of(_SCHEMA),
)
async def completions(http: HttpRequest) -> HttpAnswer:
    return await answered(http, fields.COMPLETIONS, _answer)


async def _answer(http: HttpRequest, asked: Asked) -> HttpAnswer:
    state, body, service = state_of(http), asked.body, asked.lease.service
    info = service.info
    n_logprobs = sampling.completion_logprobs(body)
    of_prompt = sampling.prompt_logprobs(body)
    echo = values.flag(body, "echo", False)
    scored = [n for n in (of_prompt, n_logprobs if echo else None) if n is not None]
    params = sampling.read_params(
        body,
        asked.lease.defaults,
        info.tokenizer.n_vocab,
        logprobs=n_logprobs,
        max_tokens=DEFAULT_MAX_TOKENS,
    )
    special = (
        values.flag(body, "add_special_tokens", True),
        values.flag(body, "parse_special", True),
    )
    prompts = _prompts(body, info.tokenizer.n_vocab)
    if len(prompts) * asked.n > MAX_CHOICES:
        raise RequestError(
            f"{len(prompts)} prompts with n = {asked.n} are more than {MAX_CHOICES} answers",
            param="prompt",
        )
    limit = truncate.room(info.n_ctx, params.max_tokens)

    def encode(check: Check) -> list[Fitted[list[int]]]:
        fitted = []
        for prompt in prompts:
            check()
            if isinstance(prompt, str):
                truncate.check_length(prompt, info.n_ctx)
            fitted.append(_encoded(prompt, info.tokenizer, special, asked.truncate, limit))
        return fitted

    fitted = await in_lane(http, encode)
    cuts = [each.cut for each in fitted if each.cut is not None]
    more: dict[str, Any] = {}
    if cuts:
        cut = truncate.Cut(cuts[0].side, 0, sum(each.n_tokens for each in cuts))
        asked.headers["x-localllm-truncated"] = cut.header()
        more["truncated"] = cut.document()
    if asked.token_ids:
        more["prompt_token_ids"] = [each.value for each in fitted]
    requests = [
        Request(
            prompt=tuple(each.value),
            params=params,
            n=asked.n,
            priority=asked.priority,
            salt=asked.salt,
            may_store=asked.may_store,
            prompt_logprobs=max(scored, default=None),
        )
        for each in fitted
    ]
    group = state.group(asked.lease)
    group.start(requests, whole=not asked.stream)
    echoes = [
        echoed(prompt if each.cut is None else each.value, each.value, info.tokenizer)
        for prompt, each in zip(prompts, fitted if echo else (), strict=False)
    ]
    wishes = Wishes(
        tokenizer=info.tokenizer,
        logprobs=n_logprobs,
        token_ids=asked.token_ids,
        prompt_logprobs=of_prompt,
        echo=tuple(echoes),
        n=asked.n,
    )
    return answer_of(state, asked, group, TextShape(wishes), more, len(requests))


Prompt = str | list[int]


def _prompts(body: Mapping[str, Any], n_vocab: int) -> list[Prompt]:
    value = body.get("prompt")
    several = isinstance(value, list) and not _are_ids(value)
    found = value if isinstance(value, list) and several else [value]
    if not found or not all(isinstance(each, str) or _are_ids(each) for each in found):
        raise values.wrong("prompt", value, _PROMPTS)
    for each in found:
        if not each:
            raise RequestError("prompt is empty; give at least one character", param="prompt")
        for token in each if isinstance(each, list) else ():
            if not 0 <= token < n_vocab:
                raise values.wrong("prompt", token, f"token ids from 0 to {n_vocab - 1}")
    return list(found)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _encoded(
    prompt: Prompt, tokenizer: Tokenizer, special: tuple[bool, bool], side: str | None, limit: int
) -> Fitted[list[int]]:
    """special: whether tokens are added in front, and whether names of control tokens in the text
    are these: such a prompt is whole, so that its client writes turns and gaps itself."""
    ids = tokenizer.encode(prompt, *special) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise RequestError("prompt has no tokens", param="prompt")
    if side is None:
        return Fitted(ids, None)
    return truncate.fit_ids(ids, limit, side, tokenizer.bos_id)
