"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from localllm.server.models import Card
from localllm.server.state import state_of

router = APIRouter()


@router.get("/v1/models", summary="The models of this server.")
async def models(http: HttpRequest) -> dict[str, Any]:
    cards = await state_of(http).models.cards()
    return {"object": "list", "data": [_document(card) for card in cards]}


@router.get("/v1/models/{name:path}", summary="One of the models.")
async def model(http: HttpRequest, name: str) -> dict[str, Any]:
    return _document(await state_of(http).models.card(name))


def _document(card: Card) -> dict[str, Any]:
    """OpenAI's fields, with vLLM's max_model_len, and llama-server's meta and status."""
    found: dict[str, Any] = {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "localllm",
        "status": {"value": card.status},
    }
    if card.info is not None:
        info = card.info
        found["max_model_len"] = info.n_ctx
        found["meta"] = {
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.n_params,
            "n_vocab": info.tokenizer.n_vocab,
            "size": info.weight_bytes,
            "architecture": info.architecture,
            "quantization": info.quantization,
        }
    return found
