"""POST /tokenize and /detokenize, as llama-server (`content`) and vLLM (`prompt`, `messages`) have
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from localllm.errors import UnsupportedError
from localllm.server import truncate
from localllm.server.errors import RequestError
from localllm.server.models import Lease
from localllm.server.schema import conversation, fields, values
from localllm.server.shelf import MAX_NAME
from localllm.server.state import body_of, in_lane, lease, read_object, state_of
from localllm.text.tokenizer import Tokenizer

router = APIRouter()
_MAX_CHARS = 16 << 20


@router.post(
    "/tokenize",
    summary="The token ids of a text or a conversation.",
    openapi_extra=body_of(fields.json_schema(fields.TOKENIZE, [])),
)
async def tokenize(http: HttpRequest) -> Response:
    return await _answer(http, fields.TOKENIZE, _tokens)


@router.post(
    "/detokenize",
    summary="The text of token ids.",
    openapi_extra=body_of(fields.json_schema(fields.DETOKENIZE, ["tokens"])),
)
async def detokenize(http: HttpRequest) -> Response:
    return await _answer(http, fields.DETOKENIZE, _text)


async def _answer(
    http: HttpRequest,
    table: Mapping[str, fields.Field],
    work: Callable[[dict[str, Any], Lease], dict[str, Any]],
) -> Response:
    """All of it on another thread, the JSON too."""
    state, body = state_of(http), await read_object(http)
    headers = state.ignored(fields.unknown(body, table, strict=state.strict))
    name = values.text(body, "model", "", MAX_NAME) or None
    held = await lease(http, name)
    try:
        data = await in_lane(http, lambda check: json.dumps(work(body, held)).encode())
    finally:
        held.release()
    return Response(data, headers=headers, media_type="application/json")


def _tokens(body: dict[str, Any], held: Lease) -> dict[str, Any]:
    return _as_llama_server(body, held) if "content" in body else _as_vllm(body, held)


def _as_llama_server(body: dict[str, Any], held: Lease) -> dict[str, Any]:
    tokenizer, text = held.service.info.tokenizer, body["content"]
    if not isinstance(text, str):
        raise values.wrong("content", text, "a text")
    truncate.check_length(text, held.service.info.n_ctx)
    add_special = values.flag(body, "add_special", False)
    parse_special = values.flag(body, "parse_special", True)
    ids = tokenizer.encode(text, add_special, parse_special)
    if not values.flag(body, "with_pieces", False):
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(tokenizer, token)} for token in ids]}


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """The text of a token, or where it is no whole text its bytes."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def _as_vllm(body: dict[str, Any], held: Lease) -> dict[str, Any]:
    info = held.service.info
    if body.get("messages") is not None:
        if info.chat_template is None:
            raise UnsupportedError(f"{held.name} has no chat template")
        options = conversation.template_options(body, info.chat_template)
        prompt = info.chat_template.prompt(conversation.messages(body), **options)
        truncate.check_length(prompt.text, info.n_ctx)
        ids = prompt.ids()
    elif "prompt" in body:
        text = values.text(body, "prompt", "", _MAX_CHARS)
        truncate.check_length(text, info.n_ctx)
        ids = info.tokenizer.encode(
            text,
            values.flag(body, "add_special_tokens", True),
            values.flag(body, "parse_special", True),
        )
    else:
        raise RequestError(
            "content, prompt or messages is missing", param="content", code="missing_parameter"
        )
    found: dict[str, Any] = {"count": len(ids), "max_model_len": info.n_ctx, "tokens": ids}
    if values.flag(body, "return_token_strs", False):
        found["token_strs"] = [
            info.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids
        ]
    return found


def _text(body: dict[str, Any], held: Lease) -> dict[str, Any]:
    tokenizer, tokens = held.service.info.tokenizer, body.get("tokens")
    if not isinstance(tokens, list):
        raise values.wrong("tokens", tokens, "a list of token ids")
    for token in tokens:
        if type(token) is not int or not 0 <= token < tokenizer.n_vocab:
            raise values.wrong("tokens", token, f"ids from 0 to {tokenizer.n_vocab - 1}")
    text = tokenizer.decode(tokens, False)
    return {"content": text, "prompt": text}
