"""The one place where an exception becomes an HTTP error, in the shape of OpenAI's API."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localllm import errors
from localllm.errors import ArgumentError, LocalLLMError, QueueFullError

MAX_ERROR_BYTES = 4096
_INVALID = "invalid_request_error"


@dataclass(frozen=True)
class Kind:
    """How an exception is answered. type and code are OpenAI's words where it has one."""

    status: int
    type: str
    code: str


class RequestError(ArgumentError):
    """A request that is refused before it reaches an engine. param: the field at fault."""

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        param: str | None = None,
        code: str = "invalid_value",
        status: int = 400,
        type: str = _INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.param = param
        self.kind = Kind(status, type, code)
        self.headers = dict(headers or {})


#: The first row whose exception fits counts.
KINDS: tuple[tuple[type[BaseException], Kind], ...] = (
    (errors.ContextFullError, Kind(400, _INVALID, "context_length_exceeded")),
    (errors.ChatTemplateError, Kind(400, _INVALID, "chat_template_error")),
    (errors.ArgumentError, Kind(400, _INVALID, "invalid_value")),
    (errors.UnsupportedError, Kind(400, _INVALID, "unsupported")),
    (errors.QueueFullError, Kind(429, "rate_limit_error", "queue_full")),
    (errors.OutOfMemoryError, Kind(503, "server_error", "out_of_memory")),
    (errors.CancelledError, Kind(503, "server_error", "cancelled")),
    (errors.FileError, Kind(503, "server_error", "model_unavailable")),
    (errors.FormatError, Kind(503, "server_error", "model_unavailable")),
    (BaseException, Kind(500, "server_error", "internal_error")),
)


def kind_of(error: BaseException) -> Kind:
    """How an exception is answered."""
    if isinstance(error, RequestError):
        return error.kind
    return next(kind for exception, kind in KINDS if isinstance(error, exception))


def document(error: BaseException) -> dict[str, Any]:
    """The body for an exception. Faults of our own do not tell what happened inside."""
    kind = kind_of(error)
    message = "internal error: this is a fault in localllm, its log says more"
    if isinstance(error, LocalLLMError):
        message = error.message
        if error.hint:
            message += f". {error.hint[0].upper()}{error.hint[1:]}"
    if isinstance(error, errors.ContextFullError) and error.n_ctx:
        # OpenAI's words, by which clients know that they have to send less.
        message += f". This model's maximum context length is {error.n_ctx} tokens"
    return {
        "error": {
            "message": message,
            "type": kind.type,
            "param": getattr(error, "param", None),
            "code": kind.code,
        }
    }


def body(error: BaseException) -> bytes:
    """The body as JSON in UTF-8, at most `MAX_ERROR_BYTES` long."""
    whole = document(error)
    fields = whole["error"]
    fields["param"] = fields["param"] and fields["param"][:100]
    while True:
        data = json.dumps(whole, ensure_ascii=False).encode("utf-8", "backslashreplace")
        if len(data) <= MAX_ERROR_BYTES:
            return data
        fields["message"] = fields["message"][: len(fields["message"]) // 2] + "..."


def headers(error: BaseException) -> dict[str, str]:
    """The headers that belong to an exception."""
    found: dict[str, str] = dict(getattr(error, "headers", {}))
    if isinstance(error, QueueFullError):
        found["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return found
