"""The table of pre-tokenizers: complete, and no pattern takes more than linear time."""

from __future__ import annotations

import time

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from localllm.text.pre_tokenizers import PRE_NAMES, PRE_TOKENIZERS

PATTERNS = sorted(
    {p for row in PRE_TOKENIZERS.values() for p in row.publisher + (row.llama_cpp or ())}
)
UNITS = ("a", "A", " ", "1", "\n", "!", "字", "\u0301", "a ", "aA", "1 ", "'s", "\u3000", "²")


def cut(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


def test_there_are_57_types_and_every_name_has_one() -> None:
    assert len(PRE_TOKENIZERS) == 57
    assert {row.type.name for row in PRE_NAMES.values()} == set(PRE_TOKENIZERS)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_long_runs_take_linear_time(pattern: str) -> None:
    """A quadratic pattern needs seconds for 30,000 characters, a linear one milliseconds."""
    for unit in UNITS:
        for tail in ("", "x"):
            text = unit * (30_000 // len(unit)) + tail
            before = time.thread_time()
            pieces = cut(pattern, text)
            assert time.thread_time() - before < 1.0, (unit, tail)
            assert "".join(pieces) == text


def test_digits_are_grouped_from_the_right() -> None:
    (digits, *_), (with_text, *_) = (
        PRE_TOKENIZERS["afmoe"].publisher,
        PRE_TOKENIZERS["afmoe"].llama_cpp,
    )
    assert cut(digits, "ab1234567 89 123456") == [
        "ab",
        "1",
        "234",
        "567",
        " ",
        "89",
        " ",
        "123",
        "456",
    ]
    assert cut(with_text, "ab1234 89x") == ["ab1", "234", " 89", "x"]
    border = PRE_TOKENIZERS["tiny_aya"].publisher[0]
    assert cut(border, "1234567 1234x 12") == ["1", "234", "567", " 1234x ", "12"]
    super_bpe = PRE_TOKENIZERS["superbpe"].publisher[1]
    assert cut(super_bpe, "1234567") == ["1", "234", "567"]
