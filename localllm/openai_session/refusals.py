"""What servers say when they refuse, in their many shapes, as our errors."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any

from localllm import errors
from localllm.errors import LocalLLMError
from localllm.plain_text import escape_line
from localllm.server.client import ServerGoneError

_LONGEST = 400
_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|maximum context"
    r"|too many tokens|prompt is too long",
    re.IGNORECASE,
)
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)
_KINDS: Mapping[str, type[LocalLLMError]] = {
    "chat_template_error": errors.ChatTemplateError,
    "unsupported": errors.UnsupportedError,
    "out_of_memory": errors.OutOfMemoryError,
    "cancelled": errors.CancelledError,
}


class KeyRefusedError(LocalLLMError):
    """A server wants a key, or another one."""


def refusal(
    host: str, url: str, answer: http.client.HTTPResponse, raw: bytes, key: str
) -> LocalLLMError:
    """The error for an answer whose status is not 200. key: is kept out of it."""
    status = answer.status
    code, said = _read(raw)
    told = _told(said, key)
    about = f"{host} answered {status}" + (f": {told}" if told else "")
    if status in (401, 403):
        return KeyRefusedError(
            f"{host} refuses the key: {told or status}" if key else f"{host} asks for a key",
            "Give it with --api-key @FILE, or in LOCALLLM_API_KEY=HOST:PORT=KEY.",
        )
    wait = _seconds(answer.getheader("retry-after"))
    if status == 429:
        hint = f"Ask again in {wait:.0f} seconds." if wait else "Ask again in a while."
        return errors.QueueFullError(about, hint, wait or 1.0)
    if 300 <= status < 400:
        to = _told(answer.getheader("location") or "", key)
        return ServerGoneError(f"{host} is elsewhere: {to}", "Give that address to --url.")
    error = _of_words(code, said, about)
    if error is not None:
        return error
    if status == 404:
        return LocalLLMError(about, f"Is {url} right? Models that are there: /models.")
    if status == 503:
        return errors.QueueFullError(
            about, "It may still be loading the model: ask again.", wait or 1.0
        )
    if status >= 500:
        return ServerGoneError(about, "The server's own log may say more.")
    return errors.ArgumentError(about)


def said_in_stream(host: str, document: Any, key: str) -> LocalLLMError | None:
    """The error in a piece of a stream, if it is one."""
    if not isinstance(document, Mapping):
        return None
    is_error = bool(document.get("error")) or document.get("object") == "error"
    if not is_error:
        return None
    code, said = _words(document)
    told = _told(said, key)
    about = f"{host} broke off its answer" + (f": {told}" if told else "")
    return _of_words(code, said, about) or ServerGoneError(about)


def _of_words(code: str, said: str, about: str) -> LocalLLMError | None:
    if code in _KINDS:
        return _KINDS[code](about)
    if _CONTEXT.search(code) or _CONTEXT.search(said):
        return errors.ContextFullError(
            about, "Begin a new conversation, or give the server a larger context."
        )
    return None


def _read(raw: bytes) -> tuple[str, str]:
    """(a word for it, a sentence), either may be empty."""
    try:
        return _words(json.loads(raw))
    except (ValueError, RecursionError):
        pass
    if b"<html" in raw[:2000].lower() or b"<!doctype" in raw[:2000].lower():
        title = _TITLE.search(raw)
        name = title[1].decode("utf-8", "replace").strip() if title else "no title"
        return "", f"a web page, {name}"
    return "", raw[: 4 * _LONGEST].decode("utf-8", "replace").strip()


def _words(document: Any) -> tuple[str, str]:
    """Of OpenAI's shape, and of those of vLLM, Ollama and FastAPI."""
    if isinstance(document, str):
        return "", document
    if not isinstance(document, Mapping):
        return "", ""
    error = document.get("error", document)
    if isinstance(error, Mapping):
        code = error.get("code") or error.get("type") or ""
        said = error.get("message") or error.get("detail") or error.get("msg") or ""
        if not isinstance(said, str):
            said = json.dumps(said)
        return str(code), said
    return "", error if isinstance(error, str) else ""


def _told(said: str, key: str) -> str:
    if key:
        said = said.replace(key, "***")
    said = escape_line(" ".join(said.split()))
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or 0)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < 86400 else 0.0
