"""Small vocabularies of every kind, as GGUF metadata. `changes` replace or add keys."""

from __future__ import annotations

from typing import Any

import numpy as np

P = "tokenizer.ggml."
"""The prefix of the keys."""


def byte_level(**changes: Any) -> dict[str, Any]:
    """A GPT-2 like vocabulary: 256 bytes, two merges, two special tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    chars = [chr(b) for b in printable] + [chr(0x100 + i) for i in range(len(rest))]
    tokens = [c.encode() for c in chars] + [b"he", b"hel", b"<|im_start|>", b"<|im_end|>", b"<tag>"]
    types = np.full(len(tokens), 1, np.int32)
    types[-3:-1] = 3
    types[-1] = 4
    metadata = {
        P + "model": "gpt2",
        P + "pre": "gpt-2",
        P + "tokens": tokens,
        P + "token_type": types,
        P + "merges": [b"h e", b"he l"],
        P + "bos_token_id": 258,
        P + "eos_token_id": 259,
    }
    return {**metadata, **{P + key: value for key, value in changes.items()}}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """A Llama like vocabulary: 3 special tokens, 256 bytes, pieces with scores."""
    pieces = ["▁", "a", "b", "ab", "▁a", "▁ab", "é"]
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]
    tokens += [piece.encode() for piece in pieces]
    types = np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces), np.int32)
    scores = np.array([0.0] * 259 + [-5, -6, -7, -2, -3, -1, -9], np.float32)
    metadata = {
        P + "model": "llama",
        P + "tokens": tokens,
        P + "token_type": types,
        P + "scores": scores,
    }
    return {**metadata, **{P + key: value for key, value in changes.items()}}


def wordpiece() -> dict[str, Any]:
    tokens = [b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", "▁play".encode(), b"ing", "▁!".encode()]
    return {
        P + "model": "bert",
        P + "tokens": tokens,
        P + "token_type": np.array([3, 2, 3, 3, 1, 1, 1], np.int32),
        P + "bos_token_id": 2,
        P + "seperator_token_id": 3,
        P + "unknown_token_id": 1,
        P + "padding_token_id": 0,
    }


def unigram(**changes: Any) -> dict[str, Any]:
    tokens = [b"<pad>", b"</s>", b"<unk>", "▁a".encode(), b"b", "▁".encode(), b"a"]
    metadata = {
        P + "model": "t5",
        P + "tokens": tokens,
        P + "token_type": np.array([3, 3, 2, 1, 1, 1, 1], np.int32),
        P + "scores": np.array([0, 0, 0, -1, -2, -3, -4], np.float32),
        P + "add_space_prefix": True,
    }
    return {**metadata, **{P + key: value for key, value in changes.items()}}
