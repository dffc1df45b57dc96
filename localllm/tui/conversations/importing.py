"""Conversations out of JSON files: ours, those that `/save` of `localllm run` writes, lists of
messages as OpenAI's and Ollama's interfaces take them (also one a line), and the tree of a ChatGPT
export (`conversations.json`).

What a file holds beyond texts (calls of tools, pictures, also those that it only names) is left
out, and counted in a note.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, FileError, FormatError
from localllm.params import GenerateParams
from localllm.tui.conversations import exporting
from localllm.tui.conversations.kinds import ROLES, Attachment, Conversation, Message, now
from localllm.tui.conversations.schema import new_id
from localllm.tui.conversations.store import Conversations
from localllm.tui.conversations.titles import title_of

MAX_BYTES = 256 << 20
_WRONG = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, ArgumentError,
)  # fmt: skip
_LATEST = 1e11  # seconds since 1970
_FRACTION = re.compile(r"\.\d+")


@dataclass
class Imported:
    """What came out of a file: ids of the new conversations, and plain lines on what did not."""

    conversations: list[int]
    notes: list[str]


@dataclass
class _Found:
    """A conversation of a file. messages: with the numbers 1, 2, ... as ids, a parent before its
    children."""

    conversation: Conversation
    messages: list[Message] = field(default_factory=list)
    leaf: int | None = None


@dataclass
class _LeftOut:
    """What was left out, by kind."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, n: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + n

    def notes(self) -> list[str]:
        return [f"left out: {n} {kind}" for kind, n in self.counts.items()]


def import_file(store: Conversations, path: Path) -> Imported:
    """Adds the conversations of a file. Raises `FileError`, and `FormatError` for a file that is
    none of those: nothing was added then."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot read {str(path)[:300]!a}: {reason}") from e
    if len(data) > MAX_BYTES:
        raise FormatError(f"{path} is longer than {MAX_BYTES:,} bytes")
    try:
        return import_bytes(store, data)
    except FormatError as e:
        raise FormatError(f"{path}: {e.message}", e.hint) from e


def import_bytes(store: Conversations, data: bytes) -> Imported:
    """As `import_file`."""
    left_out = _LeftOut()
    try:
        found = _all_of(_parsed(data), left_out)
    except _WRONG as e:
        reason = f"{type(e).__name__} {e}"[:120]
        raise FormatError(
            f"these are no conversations, or damaged: {reason}",
            "JSON of localllm, lists of messages, and conversations.json of ChatGPT are known.",
        ) from e
    found = [each for each in found if each.messages or each.conversation.draft]
    if not found:
        raise FormatError("there is no message in it")
    return Imported([_add(store, each) for each in found], left_out.notes())


def _add(store: Conversations, found: _Found) -> int:
    title = found.conversation.title
    if not title:
        title = next((title_of(m.content) for m in found.messages if m.role == "user"), "")
    made = store.put(_renewed(found.conversation, title))
    ids: dict[int | None, int] = {}
    for message in found.messages:
        ids[message.id] = new_id()
        parent = ids.get(message.parent)
        store.put_message(_moved(message, ids[message.id], made.id, parent))
    leaf = ids.get(found.leaf)
    if leaf is not None:
        store.select(made.id, leaf)
    store.cut(made.id, leaf)
    store.touch(made.id, found.conversation.updated)
    return made.id


def _renewed(conversation: Conversation, title: str) -> Conversation:
    return replace(conversation, id=0, title=title, leaf=None, deleted_at=None)


def _moved(message: Message, id: int, conversation: int, parent: int | None) -> Message:
    # None would be an answer that still grows.
    reason = "interrupted" if message.finish_reason is None else message.finish_reason
    return replace(message, id=id, conversation=conversation, parent=parent, finish_reason=reason)


def _parsed(data: bytes) -> Any:
    text = data.decode("utf-8-sig")
    try:
        return json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[0].lstrip().startswith("{"):
            raise
        return [json.loads(line) for line in lines]


def _all_of(data: Any, left_out: _LeftOut) -> list[_Found]:
    if isinstance(data, dict):
        if data.get("format") == exporting.FORMAT:
            if data["version"] != exporting.VERSION:
                raise ValueError(f"its version is {data['version']!r:.20}")
            return [_ours(each, left_out) for each in data["conversations"]]
        return [_one(data, left_out)]
    if isinstance(data, list):
        if data and all(isinstance(each, dict) and "role" in each for each in data):
            return [_list({"messages": data}, left_out)]
        return [_one(each, left_out) for each in data]
    raise TypeError(f"it is {type(data).__name__}")


def _one(data: dict[str, Any], left_out: _LeftOut) -> _Found:
    if not isinstance(data, dict):
        raise TypeError(f"a conversation is {type(data).__name__}")
    if "mapping" in data:
        return _chatgpt(data, left_out)
    return _list(data, left_out)


def _ours(data: dict[str, Any], left_out: _LeftOut) -> _Found:
    params = data["params"]
    if isinstance(stop := params.get("stop"), str):
        params = {**params, "stop": [stop]}
    GenerateParams(**params)  # raises for what no model may be asked
    conversation = Conversation(
        0,
        _text(data["title"]),
        _text(data["model"]),
        None if data["system"] is None else _text(data["system"]),
        params,
        _think(data["think"]),
        _moment(data["created"]),
        _moment(data["updated"]),
        bool(data["pinned"]),
        draft=_text(data.get("draft", "")),
        tags=tuple(_text(tag) for tag in data["tags"]),
    )
    messages: list[Message] = []
    for number, given in enumerate(data["messages"], 1):
        parent = given["parent"]
        if given["id"] != number or not (parent is None or 1 <= parent < number):
            raise ValueError(f"message {number} has no place in the tree")
        if given["role"] not in ROLES:
            raise ValueError(f"a role is {given['role']!r:.20}")
        messages.append(
            Message(
                number,
                0,
                parent,
                given["role"],
                _text(given["content"]),
                _text(given.get("reasoning", "")),
                _text(given.get("model", "")),
                _reason(given.get("finish_reason", "")),
                dict(given.get("stats", {})),
                _attachments(given.get("attachments", ()), left_out),
                _moment(given["created"]),
            )
        )
    leaf = data["leaf"]
    if not (leaf is None or (isinstance(leaf, int) and 1 <= leaf <= len(messages))):
        raise ValueError(f"leaf is {leaf!r:.20}")
    return _Found(conversation, messages, leaf)


def _attachments(given: Any, left_out: _LeftOut) -> tuple[Attachment, ...]:
    """Texts. A picture is a path, and a file from elsewhere does not say what of this machine is
    read and sent to a model."""
    kept = []
    for data in given:
        attachment = Attachment(
            **{name: _text(data.get(name, "")) for name in ("name", "kind", "text", "path")}
        )
        if attachment.kind == "text":
            kept.append(attachment)
        else:
            left_out.add("pictures")
    return tuple(kept)


def _list(data: dict[str, Any], left_out: _LeftOut) -> _Found:
    """Messages in a row: of `/save`, of a request, of an answer."""
    given = data["messages"]
    if not isinstance(given, list):
        raise TypeError("its messages are no list")
    moment = _moment(data.get("saved") or data.get("created_at") or data.get("create_time"))
    system = data.get("system")
    found = _Found(
        Conversation(
            0,
            _text(data.get("title") or ""),
            _text(data.get("model") or ""),
            system if isinstance(system, str) else None,
            _known_params(data.get("params")),
            _think(data.get("think")),
            moment,
            moment,
        )
    )
    for each in given:
        _append(found, each, moment, left_out)
    return found


def _append(found: _Found, given: dict[str, Any], moment: float, left_out: _LeftOut) -> None:
    role = "system" if given["role"] == "developer" else given["role"]
    if role not in ROLES:
        left_out.add("messages of tools")
        return
    content = _content(given.get("content"), left_out)
    reasoning = given.get("reasoning_content") or given.get("thinking") or given.get("reasoning")
    reasoning = reasoning if isinstance(reasoning, str) else ""
    if given.get("tool_calls"):
        left_out.add("calls of tools")
        if not content and not reasoning:
            return
    if role == "system" and not found.messages and found.conversation.system is None:
        found.conversation = replace(found.conversation, system=content)
        return
    number = len(found.messages) + 1
    reason = _reason(given.get("finish_reason") or ("stop" if role == "assistant" else ""))
    if isinstance(images := given.get("images"), list):
        left_out.add("pictures", len(images))
    parent = number - 1 or None
    found.messages.append(
        Message(number, 0, parent, role, content, reasoning, "", reason, {}, (), moment)
    )
    found.leaf = number


def _content(content: Any, left_out: _LeftOut) -> str:
    """A text, or the texts among its parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _text(content)
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict):
            left_out.add("parts that are no text")
        else:
            raise TypeError(f"a part of a message is {type(part).__name__}")
    return "\n\n".join(texts)


def _chatgpt(data: dict[str, Any], left_out: _LeftOut) -> _Found:
    """A tree whose nodes may hold no message, or one that is not shown: their children follow the
    nearest one above that is."""
    mapping = data["mapping"]
    begun = _moment(data.get("create_time"))
    found = _Found(
        Conversation(
            0,
            _text(data.get("title") or ""),
            _text(data.get("default_model_slug") or ""),
            created=begun,
            updated=_moment(data.get("update_time") or begun),
        )
    )
    numbers: dict[str, int | None] = {}
    for key in _downwards(mapping):
        above = mapping[key].get("parent")
        parent = numbers.get(above) if isinstance(above, str) else None
        message = _chatgpt_message(mapping[key].get("message"), begun, left_out)
        if message is None:
            numbers[key] = parent
            continue
        numbers[key] = len(found.messages) + 1
        found.messages.append(Message(len(found.messages) + 1, 0, parent, **message))
    current = data.get("current_node")
    found.leaf = numbers.get(current) if isinstance(current, str) else len(found.messages)
    return found


def _downwards(mapping: dict[str, Any]) -> Iterator[str]:
    """Keys, a parent before its children; what hangs in a circle is left out."""
    children: dict[str | None, list[str]] = {}
    for key, node in mapping.items():
        above = node.get("parent")
        children.setdefault(above if above in mapping else None, []).append(key)
    waiting = children.get(None, [])[::-1]
    while waiting:
        key = waiting.pop()
        yield key
        waiting += children.get(key, [])[::-1]


def _chatgpt_message(given: Any, begun: float, left_out: _LeftOut) -> dict[str, Any] | None:
    if not isinstance(given, dict):
        return None
    role = given["author"]["role"]
    hidden = (given.get("metadata") or {}).get("is_visually_hidden_from_conversation")
    content = given.get("content") or {}
    thoughts = content.get("thoughts")
    if thoughts:
        left_out.add("parts of reasoning")
        return None
    text = _content(content.get("parts") or content.get("text"), left_out)
    if not text.strip():
        return None
    if role not in ROLES or hidden or given.get("recipient", "all") != "all":
        left_out.add("messages of tools or not shown")
        return None
    metadata = given.get("metadata") or {}
    return {
        "role": role,
        "content": text,
        "model": _text(metadata.get("model_slug") or ""),
        "finish_reason": "stop" if role == "assistant" else "",
        "created": _moment(given.get("create_time") or begun),
    }


def _known_params(params: Any) -> dict[str, Any]:
    if not isinstance(params, dict):
        return {}
    try:
        return GenerateParams(**params).changed()
    except (TypeError, ArgumentError):
        return {}


def _think(value: Any) -> bool | str | None:
    if value in (None, True, False, "low", "medium", "high"):
        return value if isinstance(value, (bool, str)) else None
    raise ValueError(f"think is {value!r:.20}")


def _reason(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is {type(value).__name__}")
    return value


def _moment(value: Any) -> float:
    """Seconds since 1970, from those or ISO 8601; now if it says nothing."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(float(value), 3) if 0 <= value < _LATEST else now()
    if isinstance(value, str):
        try:
            iso = _FRACTION.sub(_microseconds, value, count=1).replace("Z", "+00:00")
            moment = datetime.datetime.fromisoformat(iso).timestamp()
            return round(moment, 3) if 0 <= moment < _LATEST else now()
        except (ValueError, OverflowError):
            return now()
    return now()


def _microseconds(match: re.Match[str]) -> str:
    return (match[0] + "000000")[:7]  # Python 3.10 reads three or six digits
