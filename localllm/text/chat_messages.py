"""The messages of a conversation: checked, copied, and brought into the form templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localllm.errors import ArgumentError
from localllm.text.tokenizer import checked_text

Message = Mapping[str, Any]

MAX_DEPTH = 100
"""How deeply messages and tools may be nested."""

ROLES = (
    *("system", "developer", "user", "assistant", "tool", "function", "model", "ipython"),
    *("observation", "environment", "tools", "context"),
)
"""The roles that templates know. A template may also put their names inside a control token, as in
`'<|' + message.role + '|>'`."""

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""The names under which templates look for an answer's reasoning; the first is the usual one."""


def prepared(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """A deep copy of the messages for a template.

    Keys without a value are left out, reasoning stands under the names that templates read, the
    arguments of tool calls are objects, and lists of parts are texts if `source`, the template,
    knows no parts.

    Raises `ArgumentError` for messages that are no plain data, for none at all, for a role that is
    neither known nor in the template, and for a message that says nothing.
    """
    if not messages:
        raise ArgumentError("there are no messages", "Give at least one, such as a user's.")
    takes_parts = re.search(r"is (not )?(string|iterable|sequence|mapping)|\btype\b", source)
    copies = plain(list(messages), "messages")
    for i, message in enumerate(copies):
        _check(message, i, source)
        for key in [key for key, value in message.items() if value is None]:
            del message[key]
        content = message.get("content")
        if isinstance(content, list) and not takes_parts:
            message["content"] = text_of(content)
        reasoning = next((message[k] for k in _REASONING_KEYS if k in message), None)
        if reasoning is not None:
            message.setdefault("thinking", reasoning)
            message["reasoning_content"] = reasoning
        for function in called_functions(message):
            function["arguments"] = _as_object(function.get("arguments"))
    return list(copies)


def _check(message: Any, i: int, source: str) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ArgumentError(f"messages[{i}] has no role")
    role = message["role"]
    if role not in ROLES and not knows_role(source, role):
        raise ArgumentError(
            f"messages[{i}] has the role {role!r:.60}; known are {', '.join(ROLES)}"
        )
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise ArgumentError(f"messages[{i}] ({role}) has no content")
        if not message.get("tool_calls") and not any(message.get(k) for k in _REASONING_KEYS):
            raise ArgumentError(f"messages[{i}] (assistant) has neither content nor tool calls")
    elif not isinstance(content, (str, list, dict)):
        kind = type(content).__name__
        raise ArgumentError(f"messages[{i}] has {kind} as its content, expected a text or parts")


def knows_role(source: str, role: str) -> bool:
    """Whether a template names a role."""
    return f"'{role}'" in source or f'"{role}"' in source


def text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        part["text"] for part in parts if isinstance(part, dict) and _is_text(part.get("text"))
    )


def called_functions(message: Message) -> list[dict[str, Any]]:
    """The functions in a message's tool calls, as the objects that they are."""
    calls = message.get("tool_calls")
    functions = [
        call.get("function")
        for call in (calls if isinstance(calls, list) else [])
        if isinstance(call, dict)
    ]
    return [function for function in functions if isinstance(function, dict)]


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A deep copy of plain data. Raises `ArgumentError` naming the place of what is not."""
    if depth > MAX_DEPTH:
        raise ArgumentError(f"{where[:100]} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return checked_text(value, where[:100])
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArgumentError(f"{where[:100]} has a key that is no text: {key!r:.60}")
        return {
            checked_text(key, f"a key of {where[:100]}"): plain(
                item, f"{where}.{key}" if depth < 8 else where, depth + 1
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            plain(item, f"{where}[{i}]" if depth < 8 else where, depth + 1)
            for i, item in enumerate(value)
        ]
    raise ArgumentError(f"{where[:100]} is a {type(value).__name__}, expected plain data")


def texts_in(value: Any) -> Iterator[str]:
    """Every text in plain data, keys too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _as_object(arguments: Any) -> Any:
    """Arguments of a tool call as an object if they are one written as text."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments
