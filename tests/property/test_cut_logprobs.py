"""Log probabilities of an answer that a stop string ends: those of the tokens that its text has,
and of no others, whatever the tokens and however many come at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
from reference.small_vocabularies import P, byte_level

from localllm.engine.answer_text import AnswerText
from localllm.engine.exchange import Chunk
from localllm.engine.sampling import Sampled
from localllm.params import GenerateParams
from localllm.text.reasoning import REASONING_FORMATS
from localllm.text.tokenizer import Tokenizer

WORDS = ("STOP", "ST", "OP", " STOP.", "xS", "TOPx", "éa", "<think>", "</think>")


def _tokenizer() -> Tokenizer:
    base = byte_level()
    tokens = [*base[P + "tokens"], *(word.encode() for word in WORDS)]
    types = np.array([*base[P + "token_type"], *[4] * len(WORDS)], np.int32)
    return Tokenizer.from_metadata(byte_level(tokens=tokens, token_type=types, merges=[]))


TOKENIZER = _tokenizer()
THINK = next(row for row in REASONING_FORMATS if row.name == "think")
PIECES = ("STOP", "STO", "a", "é", "漢", "😀", " ", "xSTOPx", " STOP.", "éa", "STSTOP")


def spelled(rng: random.Random, text: str) -> list[int]:
    """Token ids of a text, bytes and words mixed."""
    ids, data = [], text.encode()
    known = {TOKENIZER.token_bytes(i): i for i in range(TOKENIZER.n_vocab)}
    while data:
        lengths = [n for n in range(1, 9) if data[:n] in known]
        n = rng.choice(lengths)
        ids.append(known[data[:n]])
        data = data[n:]
    return ids


def answered(
    ids: list[int], rng: random.Random, *, stop: tuple[str, ...], thinks: bool = False
) -> list[Chunk]:
    """The chunks of an answer of these tokens, which come in groups."""
    answer = AnswerText(
        TOKENIZER,
        GenerateParams(stop=stop, logprobs=0, max_tokens=len(ids)),
        10_000,
        reasoning=THINK if thinks else None,
        opened=thinks,
        within=False,
    )
    chunks: list[Chunk] = []
    while not chunks or chunks[-1].finish_reason is None:
        n = rng.randint(1, 4)
        group, ids = ids[:n], ids[n:]
        chunks.append(answer.feed([Sampled(token, -1.0) for token in group]))
    return chunks


def told(chunks: list[Chunk]) -> list[int]:
    return [each.token for chunk in chunks for each in chunk.logprobs]


def test_tokens_of_the_text_and_no_others() -> None:
    for seed in range(3000):
        rng = random.Random(seed)
        whole = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
        ids = spelled(rng, whole)
        chunks = answered(ids, rng, stop=("STOP",))
        text = whole.partition("STOP")[0]
        assert "".join(chunk.text for chunk in chunks) == text
        kept = told(chunks)
        assert kept == ids[: len(kept)]
        begins = [b"".join(map(TOKENIZER.token_bytes, ids[:i])) for i in range(len(ids))]
        assert len(kept) == sum(len(each) < len(text.encode()) for each in begins), (seed, whole)


def test_none_is_told_before_its_text_is_sure() -> None:
    for seed in range(1000):
        rng = random.Random(seed)
        whole = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
        shown, n_bytes = "", 0
        for chunk in answered(spelled(rng, whole), rng, stop=("STOP", "a漢")):
            shown += chunk.text
            for each in chunk.logprobs:
                assert n_bytes < len(shown.encode()), (seed, whole)
                n_bytes += len(TOKENIZER.token_bytes(each.token))


def test_a_cut_behind_reasoning() -> None:
    for seed in range(1000):
        rng = random.Random(seed)
        thought, said = rng.choice(["hm STOP ", "é", " "]), rng.choice(["", "b ", "é"])
        head = spelled(rng, f"{thought}</think>\n{said}")
        chunks = answered([*head, *spelled(rng, "STOPx")], rng, stop=("STOP",), thinks=True)
        assert "".join(chunk.text for chunk in chunks) == said.lstrip()
        assert chunks[-1].finish_reason == "stop" and told(chunks) == head, seed


@pytest.mark.parametrize("cut", ["", "STO"])
def test_what_was_no_stop_string_is_told_in_the_end(cut: str) -> None:
    rng = random.Random(1)
    ids = spelled(rng, f"ab{cut}")
    chunks = answered(ids, rng, stop=("STOP",))
    assert chunks[-1].finish_reason == "length" and told(chunks) == ids
