from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.errors import ArgumentError, FormatError, LocalLLMError, UnsupportedError
from localllm.store.modelfile import parse, render
from localllm.store.settings import MAX_TEXT, Settings, from_document, parameter

WHOLE = '''# mine
from smollm2:135m
PARAMETER temperature 0.2
parameter stop "<|end|>"
PARAMETER stop STOP
PARAMETER num_ctx 4096
PARAMETER num_gpu 33
TEMPLATE """{{ messages[0].content }}
second line"""
SYSTEM You are brief.
LICENSE """MIT
License"""
LICENSE "and another"
MESSAGE user Why is the sky blue?
MESSAGE assistant """Light
scatters."""
REQUIRES 0.5.0
'''


def test_every_instruction() -> None:
    file = parse(WHOLE)
    assert file.base == "smollm2:135m"
    assert file.settings == Settings(
        template="{{ messages[0].content }}\nsecond line",
        system="You are brief.",
        parameters={"temperature": 0.2, "stop": ("<|end|>", "STOP"), "num_ctx": 4096},
        messages=(("user", "Why is the sky blue?"), ("assistant", "Light\nscatters.")),
        licence="MIT\nLicense\n\nand another",
    )
    assert [note.split(":")[0] for note in file.notes] == ["PARAMETER num_gpu", "REQUIRES 0.5.0"]


@pytest.mark.parametrize("text", ["0\x0c\n", "a  \n b", " a", "a\u2028b\n"])
def test_white_space_inside_quotes_stays(text: str) -> None:
    before = Settings(template=text, system=text)
    assert parse(render("a", before)).settings == before


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    assert parse("\ufeffFROM a\r\nSYSTEM b\r\n") == parse("FROM a\nSYSTEM b")


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("", FormatError, "no FROM"),
        ("SYSTEM x", FormatError, "no FROM"),
        ("FROM a\nFROM b", FormatError, "line 2: FROM is there twice"),
        ("FROM", FormatError, "line 1: FROM has no value"),
        ("FROM a\n\nEXEC rm", FormatError, "line 3: 'EXEC rm' is no instruction"),
        ("FROM a\n?", FormatError, "line 2"),
        ('FROM a\nSYSTEM """open', FormatError, "line 2"),
        ('FROM a\nSYSTEM """x""" y', FormatError, "'y' stands behind"),
        ("FROM a\nMESSAGE tool x", FormatError, "line 2: a message of 'tool'"),
        ("FROM a\nPARAMETER heat 1", ArgumentError, "line 2: there is no parameter 'heat'"),
        ("FROM a\nPARAMETER temperature hot", ArgumentError, "line 2: temperature"),
        ("FROM a\nPARAMETER num_ctx 0", ArgumentError, "line 2: num_ctx"),
        ("FROM a\nADAPTER ./lora.gguf", UnsupportedError, "line 2: ADAPTER ./lora.gguf"),
        ("FROM a\nSYSTEM " + "x" * (MAX_TEXT + 1), FormatError, "at most 1,048,576"),
        ("FROM a\n" + "MESSAGE user x\n" * 257, FormatError, "line 258: there are more than 256"),
        ("#" * (5 << 20), FormatError, "longer than"),
    ],
)
def test_what_is_refused(text: str, kind: type[LocalLLMError], says: str) -> None:
    with pytest.raises(kind) as e:
        parse(text)
    assert says in e.value.message and len(e.value.message) < 300


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters='"\r'), max_size=80)
_SOME = _TEXTS.filter(str.strip)


@settings(max_examples=200, deadline=None)
@given(_SOME, _SOME, st.lists(st.tuples(st.sampled_from(["user", "assistant"]), _SOME), max_size=4))
def test_what_is_written_is_read_back(
    system: str, template: str, messages: list[tuple[str, str]]
) -> None:
    before = Settings(
        template=template,
        system=system,
        parameters={
            "temperature": 0.25,
            "stop": ("a", " b"),
            "num_ctx": 512,
            "samplers": ("top_k", "temperature"),
            "logit_bias": ((3, -1.5), (9, 2.0)),
            "ignore_eos": True,
        },
        messages=tuple(messages),
        licence="one\ntwo",
    )
    assert parse(render("./base.gguf", before)).settings == before


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_any_text_ends_in_a_clear_way(text: str) -> None:
    try:
        parse(f"FROM a\n{text}")
    except (FormatError, ArgumentError, UnsupportedError) as e:
        assert e.message and len(e.message) < 500


def test_settings_pass_through_json() -> None:
    before = parse(WHOLE).settings
    assert from_document(json.loads(json.dumps(before.document()))) == before
    assert not Settings() and before and Settings().document() == {}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"system": 1},
        {"template": "x" * (MAX_TEXT + 1)},
        {"parameters": []},
        {"parameters": {"temperature": 99}},
        {"parameters": {"heat": 1}},
        {"messages": [["tool", "x"]]},
        {"messages": [["user"]]},
        {"messages": [["user", "x"]] * 257},
    ],
)
def test_damaged_settings_are_named(document: object) -> None:
    with pytest.raises(ValueError, match="settings"):
        from_document(document)


def test_parameters_of_other_programs() -> None:
    assert parameter("num_predict", 12) == ("max_tokens", 12)
    assert parameter("stop", ["a", "b"]) == ("stop", ("a", "b"))
    assert parameter("num_thread", "2") == ("num_thread", 2)


def test_tabs_separate_as_blanks_do() -> None:
    read = parse("FROM\tx\nPARAMETER\ttemperature\t0.5\nMESSAGE\tuser\thi there\n").settings
    assert read.parameters == {"temperature": 0.5}
    assert read.messages == (("user", "hi there"),)


def test_what_ollama_says_without_effect() -> None:
    unset = "PARAMETER num_predict -1\nPARAMETER seed -1"
    read = parse(f'FROM "a b.gguf"\nRENDERER gemma4\nPARSER gemma4\n{unset}')
    assert read.base == "a b.gguf" and not read.settings
    assert [note.split()[0] for note in read.notes] == ["RENDERER", "PARSER"]


def test_plain_quotes_over_several_lines() -> None:
    read = parse('FROM m\nSYSTEM "You are\nbrief."\nPARAMETER top_k 3').settings
    assert read.system == "You are\nbrief." and read.parameters == {"top_k": 3}
    # One quote alone is a part of the text.
    read = parse('FROM m\nSYSTEM "open\nPARAMETER stop "x"').settings
    assert read.system == '"open' and read.parameters == {"stop": ("x",)}
