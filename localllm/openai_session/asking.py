"""The body of a request for an answer."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, FileError
from localllm.params import GenerateParams

MAX_PICTURE_BYTES = 20 << 20
#: How files of the kinds begin that servers take.
_PICTURES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
#: Parameters under OpenAI's names; others go under ours, which most local servers know.
_STANDARD = frozenset(
    {"temperature", "top_p", "max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty"}
)
_KEPT = frozenset({"model", "messages", "stream"}) | _STANDARD
_LEFT_OUT = frozenset({"logprobs", "samplers"})  # ours alone


def asked(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    params: GenerateParams,
    think: bool | str | None,
) -> dict[str, Any]:
    """Raises `FileError` and `ArgumentError` for a picture that cannot be sent."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name, value in params.changed().items():
        if name == "logit_bias":
            body[name] = {str(token): max(bias, -100.0) for token, bias in value}
        elif name not in _LEFT_OUT:
            body[name] = list(value) if isinstance(value, tuple) else value
    if isinstance(think, bool):
        body["chat_template_kwargs"] = {"enable_thinking": think}
    elif think is not None:
        body["reasoning_effort"] = think
    return body


def plainer(body: Mapping[str, Any]) -> dict[str, Any]:
    """Without what not every server knows."""
    return {name: value for name, value in body.items() if name in _KEPT}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content: Any = str(message.get("content") or "")
    pictures = message.get("images") or ()
    if pictures:
        parts = [{"type": "text", "text": content}]
        content = [*parts, *(_picture(Path(path)) for path in pictures)]
    return {"role": str(message.get("role")), "content": content}


def _picture(path: Path) -> dict[str, Any]:
    """Only what begins as a picture leaves the machine, whatever its name says."""
    try:
        if not path.is_file():
            raise FileError(f"{path} is no file")
        with path.open("rb") as file:
            data = file.read(MAX_PICTURE_BYTES + 1)
    except (OSError, ValueError) as e:
        raise FileError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
    kind = next((kind for kind, begins in _PICTURES.items() if begins.match(data)), None)
    if kind is None:
        raise ArgumentError(f"{path} is no picture of {', '.join(_PICTURES)}")
    if len(data) > MAX_PICTURE_BYTES:
        raise ArgumentError(f"{path.name} has more than {MAX_PICTURE_BYTES >> 20} MiB")
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
