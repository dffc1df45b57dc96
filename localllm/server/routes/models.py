"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from localllm.server.models import Card, known
from localllm.server.state import state_of

router = APIRouter()


@router.get("/v1/models", summary="The models of this server.")
async def models(http: HttpRequest) -> dict[str, Any]:
    return {"object": "list", "data": [_document(card) for card in state_of(http).models.cards()]}


@router.get("/v1/models/{name:path}", summary="One of the models.")
async def model(http: HttpRequest, name: str) -> dict[str, Any]:
    cards = {card.name: card for card in state_of(http).models.cards()}
    known(name, list(cards))
    return _document(cards[name])


def _document(card: Card) -> dict[str, Any]:
    """OpenAI's fields, with vLLM's max_model_len and llama-server's meta."""
    found: dict[str, Any] = {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "localllm",
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
