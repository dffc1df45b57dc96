"""Answers in a stream: what is shown after each token, and what is held back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.small_vocabularies import P, byte_level, sentencepiece

from localllm.errors import ArgumentError
from localllm.text.answer_stream import AnswerStream, Delta
from localllm.text.reasoning import REASONING_FORMATS, ReasoningFormat
from localllm.text.tokenizer import Tokenizer

CONTROLS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "[THINK]", "[/THINK]", "<|im|>")


def _tokenizer() -> Tokenizer:
    base = byte_level()[P + "tokens"][:256]
    tokens = [*base, *(text.encode() for text in CONTROLS), b"<think>", b"</think>"]
    types = np.array([1] * 256 + [3] * len(CONTROLS) + [4, 4], np.int32)
    return Tokenizer.from_metadata(byte_level(tokens=tokens, token_type=types, merges=[]))


TOKENIZER = _tokenizer()
IDS = TOKENIZER.special_texts()


def family(name: str) -> ReasoningFormat:
    return next(row for row in REASONING_FORMATS if row.name == name)


def told(stream: AnswerStream, *tokens: str) -> list[tuple[str, str]]:
    """What the stream shows for each token: a special one by its name, else bytes one by one."""
    out = []
    for token in tokens:
        ids = [IDS[token]] if token in IDS else TOKENIZER.encode(token, add_special=False)
        deltas = [stream.feed(i) for i in ids]
        out.append(("".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)))
    return out


def test_without_a_format_all_is_answer() -> None:
    stream = AnswerStream(TOKENIZER)
    assert told(stream, " a", "<think>", "b", "[THINK]", "</think>") == [
        (" a", ""), ("<think>", ""), ("b", ""), ("", ""), ("</think>", ""),
    ]  # fmt: skip
    assert stream.finish() == Delta()


def test_everything_is_shown_at_once() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("think"))
    assert told(stream, "H", "e", "<", "<", "think>", "x ", "\n", "</think>") == [
        ("H", ""), ("e", ""), ("<", ""), ("<", ""), ("think>", ""), ("x ", ""), ("\n", ""),
        ("</think>", ""),
    ]  # fmt: skip
    stream = AnswerStream(TOKENIZER, reasoning=family("think"), opened=True)
    assert told(stream, "\n", "H", " ", "m", "<", "/th", "x", "</think>", "\n\n", "Y", " ") == [
        ("", ""), ("", "H"), ("", ""), ("", " m"), ("", ""), ("", ""), ("", "</thx"), ("", ""),
        ("", ""), ("Y", ""), (" ", ""),
    ]  # fmt: skip


def test_what_goes_on_within_a_text_keeps_its_spaces() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("think"), within=True)
    assert told(stream, " and", "<think>", "x") == [(" and", ""), ("<think>", ""), ("x", "")]
    stream = AnswerStream(TOKENIZER, reasoning=family("think"), opened=True, within=True)
    assert told(stream, " m", "</think>", "\n\n", "Y") == [
        ("", " m"),
        ("", ""),
        ("", ""),
        ("Y", ""),
    ]
    spaces = Tokenizer.from_metadata(sentencepiece())
    ids = spaces.encode("a b", add_special=False)
    for within in (True, False):
        stream = AnswerStream(spaces, within=within)
        text = "".join(stream.feed(i).text for i in ids) + stream.finish().text
        assert text == (" a b" if within else "a b")


def test_a_mark_that_does_not_come_is_text() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("think"))
    assert told(stream, "\n ", "<thi", "n") == [("", ""), ("", ""), ("", "")]
    assert stream.finish() == Delta("\n <thin")
    stream = AnswerStream(TOKENIZER, reasoning=family("think"), opened=True)
    assert told(stream, "a </thin") == [("", "a")]
    assert stream.finish() == Delta("", " </thin")
    stream = AnswerStream(TOKENIZER, reasoning=family("think"))
    assert told(stream, " \n") == [("", "")]
    assert stream.finish() == Delta(" \n")


def test_marks_count_where_the_family_writes_them() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("think"))
    assert told(stream, "Use <think>", "like", "</think> this") == [
        ("Use <think>", ""), ("like", ""), ("</think> this", ""),
    ]  # fmt: skip
    # A second opening, as DeepSeek R1 writes it after a prompt that opens; a closing alone.
    stream = AnswerStream(TOKENIZER, reasoning=family("think"), opened=True)
    assert told(stream, "<think>", "\n", "a<think>b", "</think>", "c") == [
        ("", ""), ("", ""), ("", "a<think>b"), ("", ""), ("c", ""),
    ]  # fmt: skip
    stream = AnswerStream(TOKENIZER, reasoning=family("think"))
    assert told(stream, "</think>", "\n", "a") == [("", ""), ("", ""), ("a", "")]


def test_control_tokens_are_marks_and_their_names_are_text() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("magistral"))
    text = AnswerStream(TOKENIZER, reasoning=family("magistral"))
    assert told(stream, "[THINK]", "a", "<|im|>", "b", "[/THINK]", "c", "[THINK]", "d") == [
        ("", ""), ("", "a"), ("", ""), ("", "b"), ("", ""), ("c", ""), ("", ""), ("d", ""),
    ]  # fmt: skip
    ids = TOKENIZER.encode("[THINK]a[/THINK]", add_special=False)
    assert "".join(text.feed(i).text for i in ids) == "[THINK]a[/THINK]"


def test_half_a_character_before_a_mark() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("magistral"), opened=True)
    half = TOKENIZER.encode("é", add_special=False)[0]
    deltas = [stream.feed(i) for i in (half, IDS["[/THINK]"], *TOKENIZER.encode("b"))]
    assert deltas == [Delta(), Delta(reasoning="\ufffd"), Delta("b")]


def test_harmony() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("harmony"))
    first = told(stream, "<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>")
    assert first == [("", ""), ("", ""), ("", ""), ("", "Hm"), ("", "."), ("", "")]
    call = ("<|start|>", "assistant", "<|channel|>", "commentary", "<|message|>", "Wait", "<|end|>")
    assert "".join(text for text, _ in told(stream, *call)) == "Wait"
    more = ("<|start|>", "assistant", "<|channel|>", "analysis", "<|message|>", "More", "<|end|>")
    assert "".join(thought for _, thought in told(stream, *more)) == "\n\nMore"
    last = ("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Yes", " <|end|>")
    assert "".join(text for text, _ in told(stream, *last)) == "\n\nYes <|end|>"  # spelled out
    assert stream.finish() == Delta()


def test_harmony_headers_are_not_shown() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("harmony"))
    tool = ("<|channel|>", "commentary to=functions.analysis json", "<|message|>", "{}")
    assert told(stream, *tool)[-1] == ("{}", "")
    stream = AnswerStream(TOKENIZER, reasoning=family("harmony"))
    assert told(stream, "<|channel|>", "fin")[-1] == ("", "")
    assert stream.finish() == Delta()
    stream = AnswerStream(TOKENIZER, reasoning=family("harmony"))
    assert told(stream, "<|channel|>", "x" * 300)[-1] == ("x" * 300, "")
    stream = AnswerStream(TOKENIZER, reasoning=family("harmony"))
    assert told(stream, " to=x is text")[-1] == ("", "")
    assert stream.finish() == Delta(" to=x is text")


def test_stop_strings_count_in_the_answer_only() -> None:
    stream = AnswerStream(TOKENIZER, reasoning=family("think"), opened=True, stop=("END", "\n\n"))
    assert told(stream, "an END", "</think>", "\n\nYes", " E") == [
        ("", "an END"), ("", ""), ("Yes", ""), (" ", ""),
    ]  # fmt: skip
    deltas = [stream.feed(i) for i in TOKENIZER.encode("ND tail", add_special=False)]
    assert deltas[:2] == [Delta(), Delta(stopped=True)]
    assert all(d == Delta(stopped=True) for d in deltas[1:])
    assert stream.finish() == Delta(stopped=True)


def test_finish_may_meet_a_stop_string() -> None:
    stream = AnswerStream(TOKENIZER, stop=("\ufffd",))
    assert stream.feed(TOKENIZER.encode("é", add_special=False)[0]) == Delta()
    assert stream.finish() == Delta(stopped=True)
    stream = AnswerStream(TOKENIZER, stop=("abcd", "bc"))
    assert told(stream, "abc") == [("", "")]
    assert stream.finish() == Delta("a", stopped=True)


def test_the_first_space_of_sentencepiece_is_not_shown() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    a = tokenizer.encode("a b", add_special=False)
    for reasoning in (None, family("think")):
        stream = AnswerStream(tokenizer, reasoning=reasoning)
        assert "".join(stream.feed(i).text for i in a) + stream.finish().text == "a b"


@pytest.mark.parametrize("changes", [{"stop": ("",)}, {"stop": ("x",) * 65}])
def test_limits(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="allowed"):
        AnswerStream(TOKENIZER, **changes)
    with pytest.raises(ArgumentError, match="outside the vocabulary"):
        AnswerStream(TOKENIZER).feed(10**6)
