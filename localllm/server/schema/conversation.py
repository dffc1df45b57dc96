"""What a request says of a conversation: its messages, and how the chat template writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localllm.errors import ArgumentError
from localllm.server.errors import RequestError
from localllm.server.schema import values
from localllm.text.chat_template import SYSTEM_TEXT, ChatTemplate
from localllm.text.thinking_switch import THINK_LEVELS, thinking_options

MAX_MESSAGES = 4096
_EFFORTS = ("none", *THINK_LEVELS, "xhigh")
_PARTS_NOT_SERVED = "only text is served yet"
#: What the server says itself to a template.
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", "go_on", SYSTEM_TEXT)


def messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages, which hold nothing but text. The template's own checks come later."""
    found = body.get("messages")
    if not isinstance(found, list) or not found:
        raise values.wrong("messages", found, "a list of at least one message")
    if len(found) > MAX_MESSAGES:
        raise RequestError(
            f"there are {len(found):,} messages, at most {MAX_MESSAGES:,} are read",
            param="messages",
        )
    for i, message in enumerate(found):
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
    return found


def template_options(body: Mapping[str, Any], template: ChatTemplate | None) -> dict[str, Any]:
    """The template's variables that `reasoning_effort` and `chat_template_kwargs` set."""
    effort = values.one_of(body, "reasoning_effort", _EFFORTS)
    variables = values.mapping(body, "chat_template_kwargs")
    for name in variables:
        if name in _OWN_VARIABLES:
            raise RequestError(
                f"chat_template_kwargs may not set {name}", param="chat_template_kwargs"
            )
    return {**_thinking(template, effort), **variables}


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
