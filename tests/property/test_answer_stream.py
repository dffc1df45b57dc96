"""Bar 7: answers of every reasoning family, cut at any byte into tokens, come out as they were
made: answer and reasoning apart, no replacement character invented, no stop string leaked."""

from __future__ import annotations

import itertools
import os
import random
import re
from typing import cast

import pytest

from localllm.text.answer_stream import AnswerStream
from localllm.text.reasoning import REASONING_FORMATS, ReasoningFormat
from localllm.text.tokenizer import Tokenizer

N_SPLITS = 1_000_000 if os.environ.get("FULL") == "1" else 50_000
CONTROL = re.compile(r"<\|?[A-Za-z_]+\|>|<\|[a-z]+>|\[/?THINK\]")
"""The parts of marks that are control tokens, in the vocabularies where any are."""


class Pieces:
    """Stands for a tokenizer whose tokens are the pieces of one text, and control tokens."""

    strips_first_space = False

    def __init__(self, pieces: list[bytes], controls: list[str]) -> None:
        self._pieces = pieces
        self._controls = {text: 1_000_000 + i for i, text in enumerate(controls)}
        self._names = {i: text for text, i in self._controls.items()}

    def token_bytes(self, token_id: int) -> bytes:
        name = self._names.get(token_id)
        return self._pieces[token_id] if name is None else name.encode()

    def is_control(self, token_id: int) -> bool:
        return token_id in self._names

    def special_texts(self) -> dict[str, int]:
        return self._controls


def marks_of(row: ReasoningFormat) -> list[str]:
    headers = row.headers
    marks = [*row.openings, *row.closings, *row.answer_openings, *row.answer_closings]
    return [*marks, *headers.starts, headers.end, *headers.first] if headers else marks


def words(rng: random.Random, row: ReasoningFormat) -> str:
    """Some text with pieces of the family's marks in it, but no whole one."""
    marks = marks_of(row)
    parts = []
    for _ in range(rng.randint(1, 6)):
        mark = rng.choice(marks)
        piece = mark[: rng.randrange(len(mark))] if rng.random() < 0.7 else mark[1:]
        parts.append(rng.choice([piece, "a", "é", "漢字", "😀", " ", "\n", "STOP", "STO", "."]))
    return "".join(parts)


def answer(rng: random.Random, row: ReasoningFormat, opened: bool) -> list[tuple[str, str]]:
    """An answer as (kind, text) in order; kinds: "mark", "reasoning", "answer", "space"."""
    spaces = ["", " ", "\n", "\n\n"]
    blocks: list[tuple[str, str]] = []
    headers = row.headers
    thinks = opened or rng.random() < 0.8
    if thinks:
        if not opened:
            blocks += [("space", rng.choice(spaces)), ("mark", rng.choice(row.openings))]
        blocks += [("space", rng.choice(spaces)), ("reasoning", words(rng, row))]
        if rng.random() < 0.15:
            return blocks  # cut by a limit
        blocks += [("mark", rng.choice(row.closings)), ("space", rng.choice(spaces))]
    if headers:
        begin = {"harmony": "<|channel|>final<|message|>", "muse": " to=user<|message|>"}[row.name]
        start = "<|start|>assistant" if thinks else ""
        blocks.append(("mark", start + begin))
    elif thinks and row.answer_openings and rng.random() < 0.7:
        blocks += [("mark", rng.choice(row.answer_openings)), ("space", rng.choice(spaces))]
    said = words(rng, row)
    blocks.append(
        ("answer" if not thinks and not headers else "trimmed", said + "." * said.isspace())
    )
    if row.answer_closings and rng.random() < 0.5:
        blocks.append(("mark", row.answer_closings[0]))
    if row.anywhere and thinks and rng.random() < 0.5:
        blocks += [("mark", row.openings[0]), ("reasoning", words(rng, row))]
        blocks += [("mark", row.closings[0]), ("trimmed", words(rng, row))]
    return blocks


def expected(blocks: list[tuple[str, str]]) -> tuple[str, str]:
    """What must be shown."""
    told: dict[str, list[str]] = {"answer": [], "reasoning": []}
    for i, (kind, text) in enumerate(blocks):
        if kind == "reasoning":
            told["reasoning"].append(text.strip())
        elif kind == "trimmed":
            told["answer"].append(text.lstrip())
        elif kind == "answer":
            before = "".join(t for k, t in blocks[:i] if k == "space")
            told["answer"].append(before + text)
    joined = {kind: "\n\n".join(t for t in texts if t) for kind, texts in told.items()}
    return joined["answer"], joined["reasoning"]


def only_marks_made_on_purpose(row: ReasoningFormat, blocks: list[tuple[str, str]]) -> bool:
    text = "".join(t for _, t in blocks)
    own = set()
    at = 0
    for kind, t in blocks:
        if kind == "mark":
            own.update(range(at, at + len(t)))
        at += len(t)
    for mark in marks_of(row):
        for match in re.finditer(f"(?={re.escape(mark)})", text):
            if not own.issuperset(range(match.start(), match.start() + len(mark))):
                return False
    return True


def tokens_of(
    rng: random.Random, blocks: list[tuple[str, str]], controls: list[str]
) -> tuple[list[bytes], list[int]]:
    """The pieces of an answer cut anywhere, and the token ids: control tokens of marks whole."""
    pieces: list[bytes] = []
    ids: list[int] = []
    plain = b""

    def flush() -> None:
        nonlocal plain
        at = 0
        while at < len(plain):
            n = rng.choice([1, 1, 2, 3, 5, 8, 100])
            ids.append(len(pieces))
            pieces.append(plain[at : at + n])
            at += n
        plain = b""

    pattern = re.compile("|".join(map(re.escape, controls)) or r"(?!)")
    for kind, text in blocks:
        at = 0
        for match in pattern.finditer(text) if kind == "mark" else ():
            plain += text[at : match.start()].encode()
            flush()
            ids.append(1_000_000 + controls.index(match[0]))
            at = match.end()
        plain += text[at:].encode()
    flush()
    return pieces, ids


def cut(text: str, stop: str) -> str:
    return text.split(stop)[0] if stop else text


def controls_of(row: ReasoningFormat) -> list[str]:
    return sorted({c for mark in marks_of(row) for c in CONTROL.findall(mark)})


CASES = [(row, False) for row in REASONING_FORMATS]
CASES += [(row, True) for row in REASONING_FORMATS if controls_of(row)]


@pytest.mark.parametrize(
    ("row", "with_controls"), CASES, ids=[f"{row.name} {controls}" for row, controls in CASES]
)
def test_random_splits(row: ReasoningFormat, with_controls: bool) -> None:
    controls = controls_of(row)
    rng = random.Random(f"{row.name} {with_controls}")
    n_done = n_thought = n_stopped = 0
    while n_done < N_SPLITS / len(CASES):
        opened = row.headers is None and rng.random() < 0.4
        blocks = answer(rng, row, opened)
        if not only_marks_made_on_purpose(row, blocks):
            continue
        stop = rng.choice(["", "", "STOP", "O", "字"])
        if row.anywhere and stop:
            stop = ""
        text, reasoning = expected(blocks)
        for _ in range(4):
            pieces, ids = tokens_of(rng, blocks, controls if with_controls else [])
            tokenizer = Pieces(pieces, controls if with_controls else [])
            stream = AnswerStream(
                cast(Tokenizer, tokenizer),
                reasoning=row,
                opened=opened,
                stop=(stop,) if stop else (),
            )
            shown, thought, stopped = "", "", False
            for token_id in ids:
                delta = stream.feed(token_id)
                shown, thought = shown + delta.text, thought + delta.reasoning
                assert cut(text, stop).startswith(shown), (blocks, pieces)
                stopped = delta.stopped
                if stopped:
                    break
            if not stopped:
                delta = stream.finish()
                shown, thought, stopped = (
                    shown + delta.text,
                    thought + delta.reasoning,
                    delta.stopped,
                )
            assert shown == cut(text, stop), (blocks, pieces)
            assert thought == reasoning, (blocks, pieces)
            assert stopped == (bool(stop) and stop in text)
            n_done += 1
            n_thought += bool(reasoning)
            n_stopped += stopped
    assert n_thought > n_done / 3
    assert row.anywhere or n_stopped > n_done / 50


def test_bytes_that_are_no_characters() -> None:
    """Half a character before a mark, or at the end, is one U+FFFD; nothing else is."""
    think = next(row for row in REASONING_FORMATS if row.name == "think")
    rng = random.Random(7)
    for whole, text, reasoning in (
        (b"<think>a\xe2\x82</think>b\xf0\x9f\x98", "b\ufffd", "a\ufffd"),
        (b"<think>\xff</think>\xe2\x82\xac", "€", "\ufffd"),
        (b"a\xf0\x9f<think>", "a\ufffd<think>", ""),
    ):
        for _ in range(300):
            cuts = sorted(rng.randrange(len(whole)) for _ in range(rng.randint(0, 9)))
            bounds = [0, *cuts, len(whole)]
            pieces = [whole[a:b] for a, b in itertools.pairwise(bounds)]
            stream = AnswerStream(cast(Tokenizer, Pieces(pieces, [])), reasoning=think)
            deltas = [stream.feed(i) for i in range(len(pieces))] + [stream.finish()]
            assert "".join(d.text for d in deltas) == text
            assert "".join(d.reasoning for d in deltas) == reasoning
