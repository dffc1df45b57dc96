"""Conversations that a chat template refuses, or leaves parts of out, changed so that it takes
them: as little as possible, and the caller is told.

A repair is one row of `REPAIRS`. What the template takes as it is stays as it is; otherwise the
smallest set of repairs with which it says everything is used.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from localllm.errors import ChatTemplateError
from localllm.text.chat_messages import called_functions, knows_role, text_of
from localllm.text.prompt import TrustedText
from localllm.text.template_rendering import UnrepairableError

Messages = list[dict[str, Any]]

MAX_CPU_S = 0.25
"""For trying repairs, of a template that refuses everything slowly; the try that passes it ends."""
MAX_REPAIRS = 3
"""How many repairs of one conversation are combined."""
MIN_FOUND_CHARACTERS = 12
"""A text shorter than this may stand in a prompt by chance."""
_CHECKED_ROLES = ("system", "developer", "user", "tool")


@dataclass(frozen=True)
class Repair:
    """One way to change a conversation."""

    apply: Callable[[Messages], Messages | None]
    """The changed messages; None if there is nothing to change. The given ones stay as they are."""
    note: str = ""
    """What it changes, for the user; empty if only the form of the data changes."""


def _arguments_as_text(messages: Messages) -> Messages | None:
    """For templates that join the arguments of a tool call with other text."""
    if not any(
        isinstance(f.get("arguments"), (dict, list)) for m in messages for f in called_functions(m)
    ):
        return None
    changed = []
    for message in messages:
        if called_functions(message):
            calls = [dict(call) for call in message["tool_calls"]]
            for call in calls:
                if isinstance(call.get("function"), dict):
                    function = dict(call["function"])
                    if not isinstance(function.get("arguments"), str):
                        arguments = function.get("arguments")
                        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
                    call["function"] = function
            message = {**message, "tool_calls": calls}
        changed.append(message)
    return changed


def _contents_as_parts(messages: Messages) -> Messages | None:
    """For templates that know lists of parts only."""
    if not any(isinstance(m.get("content"), str) for m in messages):
        return None
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else m
        for m in messages
    ]


def _empty_contents(messages: Messages) -> Messages | None:
    """For templates that want a content even beside tool calls."""
    if all("content" in m for m in messages):
        return None
    return [m if "content" in m else {**m, "content": ""} for m in messages]


def _developer_as_system(messages: Messages) -> Messages | None:
    if not any(m["role"] == "developer" for m in messages):
        return None
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


def _system_to_front(messages: Messages) -> Messages | None:
    systems = [m for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    if not systems or (len(systems) == 1 and messages[0] is systems[0]):
        return None
    return [{**systems[0], "content": _joined(systems)}, *rest]


def _system_into_user(messages: Messages) -> Messages | None:
    systems = [m for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    if not systems:
        return None
    at = next((i for i, m in enumerate(rest) if m["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": _joined(systems)}, *rest]
    rest[at] = {**rest[at], "content": _joined([*systems, rest[at]])}
    return rest


def _same_role_joined(messages: Messages) -> Messages | None:
    changed: Messages = []
    for message in messages:
        last = changed[-1] if changed else None
        if (
            last is not None
            and last["role"] == message["role"]
            and message["role"] in ("system", "user", "assistant")
            and not last.get("tool_calls")
        ):
            joined = {**last, **message, "content": _joined([last, message])}
            reasoning = [
                m["reasoning_content"] for m in (last, message) if "reasoning_content" in m
            ]
            if len(reasoning) > 1:
                joined["reasoning_content"] = joined["thinking"] = "\n\n".join(reasoning)
            changed[-1] = joined
        else:
            changed.append(message)
    return changed if len(changed) < len(messages) else None


def _user_first(messages: Messages) -> Messages | None:
    at = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    if at < len(messages) and messages[at]["role"] == "user":
        return None
    return [*messages[:at], {"role": "user", "content": ""}, *messages[at:]]


def _user_last(messages: Messages) -> Messages | None:
    if messages[-1]["role"] != "assistant":
        return None
    return [*messages, {"role": "user", "content": ""}]


DEVELOPER_NOTE = "developer messages are given as system messages"
REPAIRS = (
    Repair(_arguments_as_text),
    Repair(_empty_contents),
    Repair(_developer_as_system, DEVELOPER_NOTE),
    Repair(_system_to_front, "all system messages stand as one at the beginning"),
    Repair(_system_into_user, "the system message stands at the start of the first user message"),
    Repair(_same_role_joined, "messages of one role in a row are joined with an empty line"),
    Repair(_user_first, "an empty user message stands before the first answer"),
    Repair(_user_last, "an empty user message stands after the last answer"),
    Repair(_contents_as_parts),
)
_EXCLUSIVE = {_system_to_front, _system_into_user}


def repaired(
    messages: Messages, source: str, render: Callable[[Messages], TrustedText]
) -> tuple[TrustedText, tuple[str, ...]]:
    """What `render` makes of the messages, changed if need be, and the notes of what was changed.

    `source`: the template. `render` raises `ChatTemplateError` where the template refuses or fails.
    If no repair helps, the first error is raised again; messages that no repair brings into the
    prompt are named in a note.
    """
    notes: tuple[str, ...] = ()
    if not knows_role(source, "developer"):
        # It would be written as it is, and the model has never seen it.
        changed_roles = _developer_as_system(messages)
        if changed_roles is not None:
            messages, notes = changed_roles, (DEVELOPER_NOTE,)
    refusal: ChatTemplateError | None = None
    partial: tuple[TrustedText, tuple[str, ...]] | None = None
    deadline: float | None = None
    for changed, words in _candidates(messages):
        if deadline is not None and time.thread_time() > deadline:
            break
        try:
            rendering = render(changed)
            missing = _left_out(changed, rendering.text, render)
        except UnrepairableError:
            raise
        except ChatTemplateError as e:
            refusal = refusal or e
        else:
            if refusal and words:
                words[0] += f" ({refusal.message})"
            if not missing:
                return rendering, (*notes, *words)
            partial = partial or (rendering, (*notes, *words, missing))
        if deadline is None:
            deadline = time.thread_time() + MAX_CPU_S
    if partial is not None:
        return partial
    assert refusal is not None
    raise refusal


def _candidates(messages: Messages) -> Iterator[tuple[Messages, list[str]]]:
    """The messages under every set of repairs, smaller sets first, with the repairs' notes."""
    yield messages, []
    for n_repairs in range(1, MAX_REPAIRS + 1):
        for repairs in itertools.combinations(REPAIRS, n_repairs):
            if len(_EXCLUSIVE.intersection(repair.apply for repair in repairs)) > 1:
                continue
            changed: Messages | None = messages
            for repair in repairs:
                changed = repair.apply(changed) if changed is not None else None
            if changed is not None:
                yield changed, [repair.note for repair in repairs if repair.note]


def _left_out(messages: Messages, text: str, render: Callable[[Messages], TrustedText]) -> str:
    """A note of the messages whose words are not in the rendered text; empty if there are none.

    A template may write words in another way (as JSON, or trimmed inside), so what is not found,
    or too short to be found for sure, is looked for once more with other words in its place.
    """
    missing = []
    at = 0
    for i, message in enumerate(messages):
        words = text_of(message.get("content")).strip()
        if message["role"] in _CHECKED_ROLES and words:
            found = text.find(words, at)
            if found < 0 or len(words) < MIN_FOUND_CHARACTERS:
                missing.append(i)
            else:
                at = found + len(words)
    if not missing:
        return ""
    probes = {i: f"probe{i}word" for i in missing}
    try:
        text = render([_with_words(m, probes.get(i)) for i, m in enumerate(messages)]).text.lower()
    except ChatTemplateError:
        return ""  # it looks at the words themselves
    missing = [i for i in missing if probes[i] not in text]
    named = ", ".join(f"message {i + 1} ({messages[i]['role']})" for i in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"the chat template leaves out {named}{more}" if missing else ""


def _with_words(message: dict[str, Any], words: str | None) -> dict[str, Any]:
    if words is None:
        return message
    content = message["content"]
    if not isinstance(content, list):
        return {**message, "content": words}
    others = [part for part in content if isinstance(part, dict) and "text" not in part]
    return {**message, "content": [*others, {"type": "text", "text": words}]}


def _joined(messages: Messages) -> str | list[Any]:
    """The contents of several messages as one, with empty lines between them."""
    contents = [m.get("content", "") for m in messages]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(content for content in contents if content)
    parts: list[Any] = []
    for content in contents:
        if parts:
            parts.append({"type": "text", "text": "\n\n"})
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return parts
