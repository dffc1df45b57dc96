"""Conversations as files: JSON that `importing` reads back with all branches, or Markdown of the
shown path, to read."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localllm import moments
from localllm.errors import ArgumentError, FileError
from localllm.store.durable import disk_error, replacing
from localllm.tui.conversations.kinds import Conversation, Message
from localllm.tui.conversations.store import Conversations
from localllm.tui.conversations.unwritten import clean

FORMAT = "localllm conversations"
VERSION = 1
KINDS = (".md", ".json")
_HEADINGS = {"user": "Question", "assistant": "Answer", "system": "System"}


def export(store: Conversations, conversations: Sequence[int], path: Path) -> Path:
    """Writes conversations to a file, whole or not at all, readable only by its owner; Markdown if
    its name ends in .md, else JSON (.json is added). Raises `ArgumentError` for a conversation that
    is not there, and `FileError`."""
    if not path.name or "\0" in str(path):
        raise ArgumentError(f"{str(path)[:80]!a} names no file", "Name one: ./conversation.md")
    if path.suffix not in KINDS:
        path = path.with_name(path.name + ".json")
    text = as_text(store, conversations, path.suffix)
    try:
        with replacing(path, mode=0o600) as file:
            file.write(text.encode())
    except OSError as e:
        raise disk_error("write", path, e, movable=False) from e
    return path


def rescue(store: Conversations, folders: Sequence[Path]) -> Path | None:
    """Writes conversations that could not be saved to the first folder that takes them; None if
    there are none, or no folder does."""
    ids = store.unsaved_conversations()
    name = f"localllm-unsaved-{moments.iso().replace(':', '')[:17]}-{os.getpid()}.json"
    for folder in folders if ids else ():
        with contextlib.suppress(FileError):
            return export(store, ids, folder / name)
    return None


def as_text(store: Conversations, conversations: Sequence[int], kind: str) -> str:
    """kind: one of KINDS."""
    if kind == ".md":
        opened = [store.open(id, 1 << 30) for id in conversations]
        return "\n".join(markdown(each.conversation, each.messages) for each in opened)
    data = [_plain(store.open(id, 0).conversation, store.every(id)) for id in conversations]
    whole = {"format": FORMAT, "version": VERSION, "saved": moments.iso(), "conversations": data}
    return clean(json.dumps(whole, ensure_ascii=False, indent=1)) + "\n"


def file_name(conversation: Conversation, kind: str) -> str:
    """A name for its file that every system takes."""
    words = re.sub(r"[^\w]+", "-", conversation.title.lower()).strip("-_")[:60].rstrip("-_")
    return f"conversation-{words or conversation.id}{kind}"


def markdown(conversation: Conversation, messages: Sequence[Message]) -> str:
    """A heading for each message, its text as it is."""
    parts = [f"# {' '.join(conversation.title.split()) or 'A conversation'}"]
    facts = [f"with {conversation.model}"] if conversation.model else []
    if conversation.created:
        facts.append(f"begun {_iso(conversation.created)[:10]}")
    if conversation.tags:
        facts.append("tags: " + ", ".join(conversation.tags))
    if facts:
        parts.append("*" + ", ".join(facts) + "*")
    if conversation.system:
        parts += ["## System", conversation.system]
    for message in messages:
        heading = _HEADINGS.get(message.role, message.role)
        other = message.role == "assistant" and message.model not in ("", conversation.model)
        parts.append(f"## {heading}" + (f" ({message.model})" if other else ""))
        if message.reasoning:
            quoted = "\n".join(f"> {line}".rstrip() for line in message.reasoning.splitlines())
            parts.append("> *Reasoning*\n>\n" + quoted)
        for each in message.attachments:
            parts.append(f"*Attached: {each.name}*")
            if each.text:
                parts.append(_fenced(each.text))
        parts.append(message.content)
    return "\n\n".join(text for part in parts if (text := part.strip("\n"))) + "\n"


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    body = text.strip("\n")
    return f"{fence}\n{body}\n{fence}"


def _plain(conversation: Conversation, messages: Sequence[Message]) -> dict[str, Any]:
    """Messages are numbered from 1: their ids are of use only here."""
    numbers: dict[int | None, int] = {m.id: n for n, m in enumerate(messages, 1)}
    given: dict[str, Any] = {
        "title": conversation.title,
        "model": conversation.model,
        "system": conversation.system,
        "params": dict(conversation.params),
        "think": conversation.think,
        "created": _iso(conversation.created),
        "updated": _iso(conversation.updated),
        "pinned": conversation.pinned,
        "tags": list(conversation.tags),
        "draft": conversation.draft,
        "leaf": numbers.get(conversation.leaf),
    }
    return {**given, "messages": [_message(m, numbers) for m in messages]}


def _message(message: Message, numbers: dict[int | None, int]) -> dict[str, Any]:
    given: dict[str, Any] = {
        "id": numbers[message.id],
        "parent": numbers.get(message.parent),
        "role": message.role,
        "content": message.content,
        "created": _iso(message.created),
    }
    if message.role == "assistant":
        given["finish_reason"] = message.finish_reason
    for name in ("model", "reasoning"):
        if getattr(message, name):
            given[name] = getattr(message, name)
    if message.stats:
        given["stats"] = dict(message.stats)
    if message.attachments:
        given["attachments"] = [dataclasses.asdict(each) for each in message.attachments]
    return given


def _iso(seconds: float) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return _iso(0)
    return moment.isoformat(timespec="milliseconds")
