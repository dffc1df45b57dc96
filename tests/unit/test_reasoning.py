"""The table of reasoning families, and the switches for thinking."""

from __future__ import annotations

from typing import Any

import pytest
from reference.small_vocabularies import byte_level

from localllm.text.chat_template import ChatTemplate
from localllm.text.reasoning import (
    REASONING_FORMATS,
    ReasoningFormat,
    detect_reasoning,
    opens_reasoning,
)
from localllm.text.thinking_switch import thinking_options
from localllm.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_metadata(byte_level())
USER = [{"role": "user", "content": "hi"}]
TURN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def marks_of(row: ReasoningFormat) -> list[str]:
    headers = row.headers
    marks = [*row.closings, *row.answer_openings, *row.answer_closings]
    if headers is None:
        return [*row.openings, *marks]
    return [*marks, *headers.starts, headers.end, *headers.first]


@pytest.mark.parametrize("row", REASONING_FORMATS, ids=lambda row: row.name)
def test_rows(row: ReasoningFormat) -> None:
    """A stream acts on a mark as soon as it is complete, so none may lie inside another."""
    assert row.openings and row.closings
    marks = marks_of(row)
    assert len(set(marks)) == len(marks)
    for mark in marks:
        assert mark and mark == mark.rstrip()
        assert not any(mark in other for other in marks if other != mark)


def test_names_are_unique() -> None:
    assert len({row.name for row in REASONING_FORMATS}) == len(REASONING_FORMATS)


@pytest.mark.parametrize("row", REASONING_FORMATS, ids=lambda row: row.name)
def test_detection(row: ReasoningFormat) -> None:
    if row.signs is not None:
        signs = row.signs or (row.openings[0], row.closings[0])
        assert detect_reasoning(" ".join(signs), ()) is row
    tokens = (row.openings[0], row.closings[0]) if row.tokens == () else row.tokens
    if tokens is not None:
        assert detect_reasoning("", {*tokens, "<|other|>"}) is row
        fewer = detect_reasoning("", tokens[:-1])
        assert fewer is None or set(fewer.tokens or ()) < set(tokens)
    for opening in row.openings:
        assert opens_reasoning(row, f"<|assistant|>{opening}")
        assert opens_reasoning(row, f"<|assistant|>{opening}\n")
        assert not opens_reasoning(row, f"<|assistant|>{opening}\n\n{row.closings[0]}\n\n")
        assert not opens_reasoning(row, f"{opening} and more")


def test_no_detection() -> None:
    assert detect_reasoning(TURN + "I think so", ("<|im_start|>", "<|im_end|>")) is None


def test_prompts_that_open_reasoning() -> None:
    source = TURN + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"
    template = ChatTemplate(source, TOKENIZER)
    assert template.reasoning is not None and template.reasoning.name == "think"
    assert template.prompt(USER).opens_reasoning
    assert not template.prompt(USER, add_generation_prompt=False).opens_reasoning
    asked = [{"role": "user", "content": "<think>"}]
    plain = ChatTemplate("{{ messages[-1].content }}{# </think> #}", TOKENIZER)
    assert not plain.prompt(asked, add_generation_prompt=False).opens_reasoning
    assert not ChatTemplate(TURN + "<think>", TOKENIZER).prompt(USER).opens_reasoning


@pytest.mark.parametrize(
    ("tail", "options"),
    [
        ("", {True: None, False: None, "high": None}),
        ("<think></think>", {True: {}, False: None, "high": None}),
        (
            "{{ '' if enable_thinking else '<think></think>' }}",
            {True: {"enable_thinking": True}, False: {"enable_thinking": False}, "low": None},
        ),
        # Named, but it makes no difference.
        ("{% set enable_thinking = true %}{{ enable_thinking }}", {True: None, False: None}),
        (
            "{{ '<think>' if thinking else '</think>' }}",
            {True: {"thinking": True}, False: {"thinking": False}},
        ),
        (
            "{{ thinking_mode }}{# 'disabled' #}",
            {True: {"thinking_mode": "enabled"}, False: {"thinking_mode": "disabled"}},
        ),
        (
            "<think>{{ reasoning_effort }}</think>",
            {True: {}, False: None, "low": {"reasoning_effort": "low"}, "loud": None},
        ),
        (
            "{{ reasoning_effort if reasoning_effort != 'none' }}",
            {True: {"reasoning_effort": "high"}, False: {"reasoning_effort": "none"}},
        ),
        (
            "{% if reasoning_effort not in ['low', 'high'] %}{{ raise_exception('no') }}{% endif %}"
            "{{ reasoning_effort }}",
            {"low": {"reasoning_effort": "low"}, "medium": None, False: None},
        ),
        (
            "{% if thinking %}<think>{{ thinking_effort }}{% endif %}",
            {"max": {"thinking": True, "thinking_effort": "max"}, False: {"thinking": False}},
        ),
        ("{{ thinking_budget }}", {True: {"thinking_budget": -1}, False: {"thinking_budget": 0}}),
        (
            "{{ '' if '/no_think' in messages[0].content else '<think>' }}",
            {True: None, False: None},  # it would print the switch as well
        ),
    ],
)
def test_switches(tail: str, options: dict[Any, Any]) -> None:
    template = ChatTemplate(TURN + tail, TOKENIZER)
    assert thinking_options(template, None) == {}
    for think, expected in options.items():
        assert thinking_options(template, think) == expected


def test_a_switch_in_the_system_message() -> None:
    source = (
        "{% for m in messages %}[{{ m.content | replace('/no_think', '') | replace('/think', '') "
        "| trim }}]{% endfor %}"
        "{{ '</think>' if '/no_think' in messages[0].content else '<think>' }}"
    )
    template = ChatTemplate(source, TOKENIZER)
    off = thinking_options(template, False)
    assert off == {"system_text": "/no_think"}
    assert template.prompt(USER, **off).text == "[][hi]</think>"
    system = [{"role": "system", "content": "Be brief."}, *USER]
    assert template.prompt(system, **off).text == "[Be brief.][hi]</think>"
    assert system[0]["content"] == "Be brief."
    on = thinking_options(template, True)
    assert on is not None
    assert template.prompt(system, **on).text == "[Be brief.][hi]<think>"
