"""Conversations that a template refuses or leaves parts of out: changed as little as possible, and
never in silence."""

from __future__ import annotations

import time
from typing import Any

import pytest
from reference.small_vocabularies import byte_level

from localllm.errors import ArgumentError, ChatTemplateError
from localllm.text.chat_template import ChatTemplate
from localllm.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_metadata(byte_level())

PRINT = "{% for m in messages %}[{{ m.role[0] }}:{{ m.content }}]{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system!') }}"
    "{% endif %}{% endfor %}" + PRINT
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role[0] }}:{{ m.content }}]"
    "{% endif %}{% endfor %}"
)
FIRST_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system first!') }}{% endif %}{% endfor %}" + PRINT
)
ALTERNATES = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate!') }}{% endif %}{% endfor %}" + PRINT
)
STRICT = ALTERNATES.replace("{% if (m", "{% if m.role == 'system' or (m")
USER_LAST = (
    "{% if messages[-1].role == 'assistant' %}{{ raise_exception('user last!') }}{% endif %}"
    + PRINT
)
PARTS = (
    "{% for m in messages %}[{{ m.role[0] }}:{% for p in m.content if p.type == 'text' %}"
    "{{ p.text }}{% endfor %}]{% endfor %}"
)
JOINS_CONTENT = "{% for m in messages %}{{ '[' + m.role[0] + ':' + m.content + ']' }}{% endfor %}"
JOINS_ARGUMENTS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' }}"
    "{% endfor %}[{{ m.content }}]{% endfor %}"
)

FRONT = "all system messages stand as one at the beginning"
INTO = "the system message stands at the start of the first user message"
JOINED = "messages of one role in a row are joined with an empty line"
FIRST = "an empty user message stands before the first answer"
LAST = "an empty user message stands after the last answer"
DEVELOPER = "developer messages are given as system messages"


def turns(text: str) -> list[dict[str, Any]]:
    """ "s:be nice|u:hi" as messages."""
    roles = {"s": "system", "u": "user", "a": "assistant", "d": "developer", "t": "tool"}
    pairs = [part.split(":") for part in text.split("|")]
    return [{"role": roles[role], "content": content} for role, content in pairs]


@pytest.mark.parametrize(
    ("source", "messages", "text", "notes"),
    [
        (PRINT, "s:be nice|u:hi|s:or not|u:ho", "[s:be nice][u:hi][s:or not][u:ho]", []),
        (PRINT, "a:hi|a:ho|a:he", "[a:hi][a:ho][a:he]", []),
        (NO_SYSTEM, "u:hi", "[u:hi]", []),
        (NO_SYSTEM, "s:be nice|u:hi|a:ho", "[u:be nice\n\nhi][a:ho]", [INTO]),
        (NO_SYSTEM, "u:hi|a:ho|s:be nice|u:he", "[u:be nice\n\nhi][a:ho][u:he]", [INTO]),
        (NO_SYSTEM, "a:ho|s:be nice|u:he", "[a:ho][u:be nice\n\nhe]", [INTO]),
        (NO_SYSTEM, "s:be nice|a:ho", "[u:be nice][a:ho]", [INTO]),
        (NO_SYSTEM, "s:be nice", "[u:be nice]", [INTO]),
        (DROPS_SYSTEM, "s:be nice|u:hi", "[u:be nice\n\nhi]", [INTO]),
        (DROPS_SYSTEM, "s:be nice|u:be nice", "[u:be nice\n\nbe nice]", [INTO]),
        (DROPS_SYSTEM, "s:e|u:hide", "[u:e\n\nhide]", [INTO]),
        (DROPS_SYSTEM, "s: |u:hi", "[u:hi]", []),
        (FIRST_SYSTEM, "s:be|u:hi|s:nice|u:ho", "[s:be\n\nnice][u:hi][u:ho]", [FRONT]),
        (FIRST_SYSTEM, "u:hi|s:nice|u:ho", "[s:nice][u:hi][u:ho]", [FRONT]),
        (FIRST_SYSTEM, "s:a|s:b|u:ho", "[s:a\n\nb][u:ho]", [FRONT]),
        (ALTERNATES, "s:be nice|u:hi|a:ho|u:he", "[s:be nice][u:hi][a:ho][u:he]", []),
        (ALTERNATES, "u:hi|u:ho", "[u:hi\n\nho]", [JOINED]),
        (ALTERNATES, "u:hi|a:x|a:y|u:ho|u:he", "[u:hi][a:x\n\ny][u:ho\n\nhe]", [JOINED]),
        (ALTERNATES, "a:hi|u:ho", "[u:][a:hi][u:ho]", [FIRST]),
        (ALTERNATES, "s:be nice|a:hi|u:ho", "[s:be nice][u:][a:hi][u:ho]", [FIRST]),
        (STRICT, "u:hi|s:nice|u:ho", "[s:nice][u:hi\n\nho]", [FRONT, JOINED]),
        (STRICT, "a:hi|s:nice|u:ho", "[s:nice][u:][a:hi][u:ho]", [FRONT, FIRST]),
        (USER_LAST, "u:hi|a:ho", "[u:hi][a:ho][u:]", [LAST]),
        (PRINT, "d:be nice|u:hi", "[s:be nice][u:hi]", [DEVELOPER]),
        (NO_SYSTEM, "d:be nice|u:hi", "[u:be nice\n\nhi]", [DEVELOPER, INTO]),
        (PRINT + "{# 'developer' #}", "d:be nice|u:hi", "[d:be nice][u:hi]", []),
        (DROPS_SYSTEM.replace("!= 'system'", "not in ['system', 'developer']"), "d:be nice|u:hi",
         "[u:be nice\n\nhi]", [DEVELOPER, INTO]),
        (PARTS, "s:be nice|u:hi", "[s:be nice][u:hi]", []),
    ],
)  # fmt: skip
def test_repairs(source: str, messages: str, text: str, notes: list[str]) -> None:
    given = turns(messages)
    prompt = ChatTemplate(source, TOKENIZER).prompt(given)
    assert prompt.text == text
    assert given == turns(messages)
    assert len(prompt.repairs) == len(notes)
    for repair, note in zip(prompt.repairs, notes, strict=True):
        assert repair == note or repair.startswith(f"{note} (the chat template refused: ")


def test_the_templates_words_are_in_the_note() -> None:
    prompt = ChatTemplate(NO_SYSTEM, TOKENIZER).prompt(turns("s:be nice|u:hi"))
    assert prompt.repairs == (f"{INTO} (the chat template refused: no system!)",)
    dropped = ChatTemplate(DROPS_SYSTEM, TOKENIZER).prompt(turns("s:be nice|u:hi"))
    assert dropped.repairs == (INTO,)


def test_no_repair_helps() -> None:
    refusing = "{% if messages | length > 0 %}{{ raise_exception('I take nothing') }}{% endif %}"
    with pytest.raises(ChatTemplateError, match="refused: I take nothing"):
        ChatTemplate(refusing, TOKENIZER).prompt(turns("s:be nice|u:hi|u:ho|a:x|d:y|a:z"))
    first = "{{ raise_exception('I take nothing from ' + messages[0].role) }}"
    with pytest.raises(ChatTemplateError, match="refused: I take nothing from system"):
        ChatTemplate(first, TOKENIZER).prompt(turns("s:be nice|u:hi"))


def test_what_is_left_out_is_named() -> None:
    last = "[{{ messages[-1].content }}]"
    prompt = ChatTemplate(last, TOKENIZER).prompt(turns("u:hello there|a:x|u:ho"))
    assert prompt.text == "[ho]"
    assert prompt.repairs == ("the chat template leaves out message 1 (user)",)
    many = ChatTemplate("[]", TOKENIZER).prompt(turns("u:a|t:b|u:c|a:x|u:d|u:e"))
    assert many.repairs == (
        "the chat template leaves out message 1 (user), message 2 (tool), message 3 (user)"
        " and 2 more",
    )


def test_what_is_left_out_after_a_repair() -> None:
    source = NO_SYSTEM.replace(PRINT, "[{{ messages[-1].content }}]")
    prompt = ChatTemplate(source, TOKENIZER).prompt(turns("s:be nice|u:hello|a:x|u:ho"))
    assert prompt.text == "[ho]"
    assert prompt.repairs == (
        f"{INTO} (the chat template refused: no system!)",
        "the chat template leaves out message 1 (user)",
    )


def test_words_written_in_another_way_are_not_missing() -> None:
    for source in (
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
        "{% for m in messages %}{{ m.content.split() | join('  ') }}{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    ):
        prompt = ChatTemplate(source, TOKENIZER).prompt(turns('s:be "nice" to\nall|u:who is so'))
        assert not prompt.repairs


def test_a_switch_in_the_system_message_is_not_missing() -> None:
    """SmolLM3 and Nemotron read /no_think and do not print it."""
    source = (
        "{% for m in messages %}{{ m.content | replace('/no_think', '') }}{% endfor %}"
        "{{ '' if '/no_think' in messages[0].content else '<think>' }}"
    )
    prompt = ChatTemplate(source, TOKENIZER).prompt(turns("s:/no_think|u:hello"))
    assert (prompt.text, prompt.repairs) == ("hello", ())


def test_tool_calls() -> None:
    call = {"function": {"name": "w", "arguments": {"city": "Zürich"}}}
    messages = [
        *turns("u:hi"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "w", "arguments": "{}"}}]},
    ]
    for source, text in (
        (JOINS_ARGUMENTS, '[hi]<{"city": "Zürich"}>[]<{}>[]'),
        (JOINS_CONTENT, "[u:hi][a:][a:]"),
        (ALTERNATES.replace("!= (", "== ("), None),
    ):
        template = ChatTemplate(source, TOKENIZER)
        if text is None:
            with pytest.raises(ChatTemplateError, match="alternate"):
                template.prompt(messages)
        else:
            assert template.prompt(messages).text == text
            assert not template.prompt(messages).repairs


def test_tools_that_a_template_counts_on() -> None:
    source = "{% for t in tools %}{{ t.name }}{% endfor %}" + PRINT
    template = ChatTemplate(source, TOKENIZER)
    assert template.prompt(turns("u:hi")).text == "[u:hi]"
    assert template.prompt(turns("u:hi"), [{"name": "w"}]).text == "w[u:hi]"


def test_parts_stay_parts() -> None:
    image = {"type": "image", "image": "x"}
    messages = [
        *turns("s:be nice"),
        {"role": "user", "content": [image, {"type": "text", "text": "what?"}]},
    ]
    source = PARTS + (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{% endfor %}{{ messages[0].content | map(attribute='type') | join(',') }}"
    )
    prompt = ChatTemplate(source, TOKENIZER).prompt(messages)
    assert prompt.text == "[u:be nice\n\nwhat?]text,text,image,text"


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "there are no messages"),
        (({"role": "user", "content": None},), r"messages\[0\] \(user\) has no content"),
        (({"role": "user"},), r"messages\[0\] \(user\) has no content"),
        (({"role": "system", "content": None},), r"messages\[0\] \(system\) has no content"),
        (({"role": "assistant", "content": None},), "neither content nor tool calls"),
        (({"role": "assistant", "tool_calls": []},), "neither content nor tool calls"),
        (({"role": "user", "content": 3},), "has int as its content"),
        (({"role": "user", "content": True},), "has bool as its content"),
        (({"role": "banana", "content": "x"},), "the role 'banana'; known are system, developer"),
        (({"role": "", "content": "x"},), "the role ''; known are"),
        (({"role": "x" * 10_000, "content": "x"},), "the role 'xxxx"),
        (({"role": None, "content": "x"},), r"messages\[0\] has no role"),
    ],
)
def test_messages_that_say_nothing(messages: Any, error: str) -> None:
    with pytest.raises(ArgumentError, match=error) as caught:
        ChatTemplate(PRINT, TOKENIZER).prompt(messages)
    assert not isinstance(caught.value, ChatTemplateError)
    assert len(caught.value.message) < 300


def test_repairing_has_an_end() -> None:
    """A template that refuses slowly: one rendering, the time for repairs and the last try."""
    source = "{% for i in range(9000) %}{% endfor %}" * 6 + "{{ raise_exception('no') }}"
    template = ChatTemplate(source, TOKENIZER)
    messages = turns("s:a|u:b|u:c|s:d|a:e|d:f|a:g")
    with pytest.raises(ChatTemplateError):
        template.prompt(messages)  # compiles it
    before = time.thread_time()
    with pytest.raises(ChatTemplateError, match=r"refused: no|stopped"):
        template.prompt(messages)
    assert time.thread_time() - before < 2.0
