"""Conversations of every kind that templates meet: what `test_chat_templates` renders."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "You are terse, and honest."}
TURNS: list[Message] = [
    {"role": "user", "content": "  Is 1 < 2, and who says so? \n"},
    {"role": "assistant", "content": "Yes; arithmetic does."},
    {"role": "user", "content": "And now > how about this?"},
]
CITY = {"type": "string", "description": "A city, as in \"Paris\" or '東京'"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
        },
    }
]
NESTED_TOOLS = [
    *TOOLS,
    {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Books a trip.\nTwo lines.",
            "parameters": {
                "type": "object",
                "properties": {
                    "stops": {
                        "type": "array",
                        "description": "The stops",
                        "items": {
                            "type": "object",
                            "properties": {
                                "city": CITY,
                                "nights": {"type": "integer", "minimum": 1},
                                "kind": {"type": "string", "enum": ["hotel", "tent"]},
                            },
                            "required": ["city"],
                        },
                    },
                    "class": {"type": ["string", "null"], "default": None, "description": "?"},
                    "flexible": {"type": "boolean", "description": "May it move?"},
                },
                "required": ["stops"],
            },
        },
    },
]


def call(name: str, arguments: dict[str, Any], number: int = 0) -> Message:
    """A tool call; its id has the nine characters that Mistral's templates want."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"abcdefgh{number}", "type": "function", "function": function}


def result(content: str, name: str = "weather", number: int = 0) -> Message:
    return {"role": "tool", "name": name, "tool_call_id": f"abcdefgh{number}", "content": content}


PARIS = call("weather", {"city": "Paris"})
TOOL_TURNS: list[Message] = [
    TURNS[0],
    {"role": "assistant", "content": "", "tool_calls": [PARIS]},
    result('{"t": 20}'),
]
PARALLEL_TURNS: list[Message] = [
    TURNS[0],
    {
        "role": "assistant",
        "content": "I look both up.",
        "tool_calls": [
            PARIS,
            call("book", {"stops": [{"city": "Zürich", "nights": 2}], "flexible": True}, 1),
        ],
    },
    result('{"t": 20}'),
    result("booked: 2 nights", "book", 1),
]
REASONED: list[Message] = [
    TURNS[0],
    {"role": "assistant", "content": "Yes.", "reasoning_content": "One is less.\nSo it is."},
    TURNS[2],
]


@dataclass(frozen=True)
class Conversation:
    """What a template is given."""

    messages: list[Message]
    tools: list[Any] | None = None
    add_generation_prompt: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    ours: list[Message] | None = None
    """What our side is given, if it is not the same."""


def with_arguments_as_text(messages: list[Message]) -> list[Message]:
    """The messages with the arguments of tool calls as JSON text: the OpenAI interface's form."""
    out = []
    for message in messages:
        if "tool_calls" in message:
            calls = [
                {**c, "function": {**c["function"], "arguments": _text(c["function"]["arguments"])}}
                for c in message["tool_calls"]
            ]
            message = {**message, "tool_calls": calls}
        out.append(message)
    return out


def _text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _without(messages: list[Message], key: str) -> list[Message]:
    return [{k: v for k, v in m.items() if k != key or "tool_calls" not in m} for m in messages]


CONVERSATIONS: dict[str, Conversation] = {
    "simple": Conversation(TURNS[:1]),
    "simple, closed": Conversation(TURNS[:2], add_generation_prompt=False),
    "system": Conversation([SYSTEM, TURNS[0]]),
    "multi-turn": Conversation([SYSTEM, *TURNS]),
    "no system": Conversation(TURNS),
    "many turns, closed": Conversation([SYSTEM, *TURNS, *TURNS[1:], TURNS[1]], None, False),
    "unicode": Conversation(
        [
            {"role": "system", "content": "Antworte auf Französisch: «…», \u2028 👩🏽‍🚀"},
            {"role": "user", "content": "Straße, 漢字, \u202eabc\u202c & <b>\"'\\n{{ x }}{% y %}"},
        ]
    ),
    "empty contents": Conversation(
        [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "Say something, please."},
        ]
    ),
    "tools offered": Conversation([SYSTEM, TURNS[0]], TOOLS),
    "tools offered, no system": Conversation(TURNS, NESTED_TOOLS),
    "tool called": Conversation(TOOL_TURNS, TOOLS),
    "tool called, system": Conversation([SYSTEM, *TOOL_TURNS], NESTED_TOOLS),
    "tool called and answered": Conversation(
        [SYSTEM, *TOOL_TURNS, {"role": "assistant", "content": "It has 20 degrees."}, TURNS[2]],
        TOOLS,
    ),
    "parallel calls": Conversation(PARALLEL_TURNS, NESTED_TOOLS),
    "arguments as text": Conversation(TOOL_TURNS, TOOLS, ours=with_arguments_as_text(TOOL_TURNS)),
    "parallel calls, arguments as text": Conversation(
        PARALLEL_TURNS, NESTED_TOOLS, ours=with_arguments_as_text(PARALLEL_TURNS)
    ),
    "call without content": Conversation(
        _without(TOOL_TURNS, "content"),
        TOOLS,
        ours=[{**m, "content": m["content"] or None} for m in TOOL_TURNS],
    ),
    "reasoning before": Conversation(REASONED),
    "reasoning under another name": Conversation(
        [
            TURNS[0],
            {"role": "assistant", "content": "Yes.", "reasoning": "One is less."},
            {"role": "user", "content": "So?"},
            {"role": "assistant", "content": "No.", "thinking": "Really?"},
        ],
        add_generation_prompt=False,
    ),
    "reasoning last": Conversation(REASONED[:2], add_generation_prompt=False),
    "reasoning and tools": Conversation(
        [TURNS[0], {**TOOL_TURNS[1], "reasoning_content": "I must look."}, TOOL_TURNS[2]], TOOLS
    ),
    "thinking on": Conversation([SYSTEM, *TURNS], options={"enable_thinking": True}),
    "thinking off": Conversation([SYSTEM, *TURNS], options={"enable_thinking": False}),
    "thinking on, tools": Conversation(TURNS[:1], TOOLS, options={"enable_thinking": True}),
    "other switches": Conversation(
        REASONED, options={"thinking": True, "reasoning_effort": "low", "thinking_budget": 512}
    ),
    "middle system": Conversation([TURNS[0], TURNS[1], SYSTEM, TURNS[2]]),
    "two users": Conversation([TURNS[0], TURNS[2]]),
    "assistant first": Conversation([TURNS[1], TURNS[2]]),
    "assistant last": Conversation([TURNS[0], TURNS[1]]),
    "developer": Conversation([{**SYSTEM, "role": "developer"}, TURNS[0]]),
}
