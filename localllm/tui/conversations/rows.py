"""Rows of the tables as conversations and messages, and the other way round."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from localllm.errors import ArgumentError
from localllm.tui.conversations.kinds import Attachment, Conversation, Message
from localllm.tui.conversations.unwritten import Row, as_json, clean

CONVERSATION = (
    "title", "model", "system", "params", "think", "created", "updated", "pinned", "deleted_at",
    "leaf", "draft",
)  # fmt: skip
MESSAGE = (
    "conversation", "parent", "role", "content", "reasoning", "model", "finish_reason", "stats",
    "attachments", "created",
)  # fmt: skip
MAX_TAG = 40
MAX_TITLE = 200
_CHANGEABLE = {"title", "model", "system", "params", "think", "pinned", "tags", "draft"}


def conversation_of(id: int, row: Mapping[str, Any], tags: Sequence[str]) -> Conversation:
    """Columns that are missing have their defaults."""
    given = {name: row[name] for name in CONVERSATION if name in row}
    given["params"] = _mapping(given.get("params", "{}"))
    think = _data(given.get("think", "null"))
    given["think"] = think if isinstance(think, (bool, str)) else None
    given["pinned"] = bool(given.get("pinned", False))
    return Conversation(id=id, tags=tuple(tags), **given)


def message_of(id: int, row: Mapping[str, Any], siblings: tuple[int, ...] = ()) -> Message:
    """Columns that are missing have their defaults."""
    given: dict[str, Any] = {"conversation": 0, "parent": None, "role": "user"}
    given |= {name: row[name] for name in MESSAGE if name in row}
    given["stats"] = _mapping(given.get("stats", "{}"))
    attachments = _data(given.get("attachments", "[]"))
    given["attachments"] = tuple(
        _attachment(each) for each in (attachments if isinstance(attachments, list) else ())
    )
    return Message(id=id, siblings=siblings, **given)


def conversation_row(conversation: Conversation) -> Row:
    """All columns, and the tags."""
    return {name: _value(name, getattr(conversation, name)) for name in (*CONVERSATION, "tags")}


def message_row(message: Message) -> Row:
    """All columns."""
    return {name: _value(name, getattr(message, name)) for name in MESSAGE}


def changed_row(fields: Mapping[str, Any]) -> Row:
    """Columns for new values of fields. Raises `ArgumentError` for one that cannot be changed."""
    for name in fields:
        if name not in _CHANGEABLE:
            raise ArgumentError(f"{name[:40]!a} of a conversation cannot be changed")
    return {name: _value(name, value) for name, value in fields.items()}


def as_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """On one line each, not too long, each once, sorted."""
    return tuple(sorted({tag for each in tags if (tag := " ".join(clean(each).split())[:MAX_TAG])}))


def _value(name: str, value: Any) -> Any:
    if name in ("params", "stats"):
        return as_json(dict(value))
    if name == "think":
        return as_json(value)
    if name == "pinned":
        return int(value)
    if name == "tags":
        return as_tags(value)
    if name == "title":
        return " ".join(clean(value).split())[:MAX_TITLE]
    if name == "attachments":
        return as_json([dataclasses.asdict(each) for each in value])
    return clean(value) if isinstance(value, str) else value


def _data(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # another hand was in the file
        return None


def _mapping(text: str) -> dict[str, Any]:
    found = _data(text)
    return found if isinstance(found, dict) else {}


def _attachment(given: Any) -> Attachment:
    if not isinstance(given, dict):
        return Attachment("?")
    texts = {name: str(given.get(name, "")) for name in ("name", "kind", "text", "path")}
    return Attachment(**texts)
