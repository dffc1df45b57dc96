"""What the commands `ps` and `stop` ask: only of this machine."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from localllm import __version__
from localllm.server.errors import RequestError
from localllm.server.schema import values
from localllm.server.shelf import MAX_NAME
from localllm.server.state import body_of, read_object, state_of
from localllm.store.identifiers import is_loopback

router = APIRouter(prefix="/localllm")
_STOP_SCHEMA = {
    "type": "object",
    "required": ["model"],
    "properties": {"model": {"type": "string"}},
}


@router.get("/ps", summary="The loaded models and their memory; for this machine only.")
async def ps(http: HttpRequest) -> dict[str, Any]:
    only_here(http)
    manager = state_of(http).models
    return {
        "version": __version__,
        "pid": os.getpid(),
        "budget_bytes": manager.budget_bytes,
        "used_bytes": manager.used_bytes,
        "models": [dataclasses.asdict(row) for row in manager.rows()],
    }


@router.post(
    "/stop",
    summary="Unloads a model, once it has answered; for this machine only.",
    openapi_extra=body_of(_STOP_SCHEMA),
)
async def stop(http: HttpRequest) -> dict[str, Any]:
    only_here(http)
    name = values.text(await read_object(http), "model", "", MAX_NAME)
    if not name:
        raise RequestError("model is missing", param="model", code="missing_parameter")
    row = await state_of(http).models.stop(name)
    return {"was_loaded": row is not None, "answering": row.answering if row else 0}


def only_here(http: HttpRequest) -> None:
    """Raises `RequestError` for a client on another machine. One here has an address of loopback,
    or the one that it reached the server by."""
    here, client = http.scope.get("server"), http.client
    if client is None or not (is_loopback(client.host) or (here and here[0] == client.host)):
        raise RequestError(
            "only programs on the server's own machine may ask this",
            code="forbidden",
            status=403,
            type="permission_error",
        )
