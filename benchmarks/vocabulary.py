"""Made-up vocabularies of any size, as costly to build as real ones: a start reads all of it.

A token is two earlier tokens put together, so every merge is one that can happen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import gguf

_MAX_CHARS = 12
_CONTROL = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LETTERS = "etaoinshrdlucmfwygpbvkxqjzETAOINSHRDLUCMFWYGPBVKXQJZ0123456789.,-'"


def _grow(letters: Sequence[str], n: int) -> tuple[list[str], list[str]]:
    """n distinct texts, letters first, and the merges "left right" that make the others."""
    rng = random.Random(0)
    texts, known = list(letters), set(letters)
    merges: list[str] = []
    while len(texts) < n:
        # Two draws, the lesser counts: short texts come first and are used most.
        left = texts[min(rng.randrange(len(texts)), rng.randrange(len(texts)))]
        right = texts[min(rng.randrange(len(texts)), rng.randrange(len(texts)))]
        if len(left + right) <= _MAX_CHARS and left + right not in known:
            known.add(left + right)
            texts.append(left + right)
            merges.append(f"{left} {right}")
    return texts, merges


def _finish(w: gguf.GGUFWriter, tokens: list[str], types: list[int]) -> None:
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_eos_token_id(tokens.index(_CONTROL[1]))
    w.add_chat_template(_TEMPLATE)


def byte_level(w: gguf.GGUFWriter, n: int) -> None:
    """A byte-level vocabulary with merges, as of Llama 3 and Qwen."""
    printable = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    letters = [chr(c) for c in (*printable, *range(0x100, 0x100 + 256 - len(printable)))]
    texts, merges = _grow(letters, n - len(_CONTROL))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    _finish(w, [*texts, *_CONTROL], [1] * len(texts) + [3] * len(_CONTROL))
    w.add_token_merges(merges)
    w.add_add_bos_token(False)


def sentencepiece(w: gguf.GGUFWriter, n: int) -> None:
    """A vocabulary with scores and byte tokens, as of Llama 2 and Gemma."""
    first = ["<unk>", "<s>", *_CONTROL, *(f"<0x{i:02X}>" for i in range(256))]
    texts, _ = _grow(["▁", "\n", *_LETTERS], n - len(first))
    w.add_tokenizer_model("llama")
    _finish(w, [*first, *texts], [2, 3, 3, 3] + [6] * 256 + [1] * len(texts))
    w.add_token_scores([0.0] * len(first) + [-float(i) for i in range(len(texts))])
    w.add_bos_token_id(1)
    w.add_unk_token_id(0)
    w.add_add_space_prefix(False)
