"""Random texts: the same ids as llama.cpp's tokenizer, for every kind of vocabulary and every
pre-tokenizer type.

Where this program knowingly departs from llama.cpp (DIFFERENCES) the share of texts that differ is
bounded, so that a new difference does not hide behind a known one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_vocab import LlamaVocab
from random_texts import random_text
from vocab_files import read_metadata, sdist_vocabularies

from localllm.text.pre_tokenizers import PRE_NAMES
from localllm.text.tokenizer import Tokenizer

FULL = os.environ.get("FULL") == "1"
N_PER_KIND = 100_000 if FULL else 5_000
N_PER_FILE = 10_000 if FULL else 300
N_PER_TYPE = 2_000 if FULL else 60

#: One vocabulary per kind gets the large count.
KINDS = {
    "gpt-2": "byte-level BPE",
    "llama-spm": "SentencePiece BPE",
    "gemma-4": "BPE with byte fallback",
    "nomic-bert-moe": "Unigram",
    "bert-bge": "WordPiece",
}
FILES = (
    *("aquila", "baichuan", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-neox"),
    *("llama-bpe", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
    *("smollm2:135m", "gemma3:270m"),
)

#: vocabulary -> largest share of texts that may differ, reason
DIFFERENCES = {
    "bert-bge": (
        0.1,
        "llama.cpp decomposes Hangul and drops its vowels, and drops vowel signs (Mc) of Indic "
        "scripts; its character classes are older; a ▁ in the text starts a word there; BERT "
        "gives [UNK] for words of more than 100 characters",
    ),
    "nomic-bert-moe": (
        0.03,
        "the replacement table is applied per grapheme, as in the publisher's tokenizer, and not "
        "to the longest match: Hangul and marks after letters that do not combine with them",
    ),
}

#: pre-tokenizer type -> largest share of texts whose ids differ between the publisher's splitter
#: and llama.cpp, reason. A type that is not here has no difference in these texts.
PUBLISHER_DIFFERENCES = {
    "gpt4o": (0.15, "upper and lower case are told apart beyond ASCII, marks belong to words"),
    "minimax_m2": (0.15, "as gpt4o"),
    "tekken": (0.15, "as gpt4o"),
    "kimi_k2": (0.15, "as gpt4o, and Han is the script and not a list of blocks"),
    "tiny_aya": (0.25, "as gpt4o, and digits are grouped only where a word ends"),
    "youtu": (0.15, "as gpt4o"),
    "deepseek_llm": (0.05, "ideographic spaces count as signs"),
    "deepseek_coder": (0.05, "ideographic spaces count as CJK text"),
    "afmoe": (0.1, "llama.cpp leaves the spaces before a number in the number's piece"),
    "superbpe": (0.05, "digits beyond ASCII are grouped too"),
    "bailingmoe": (0.05, "possessive quantifiers do not give back"),
}
#: Types whose pieces are no bytes: they need a vocabulary of their own, or llama.cpp aborts.
UNTESTABLE = {"gemma4", "sarvam_moe", "whitespace"}


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sdist_vocabularies(tmp_path_factory.mktemp("vocabularies"))


def _path(name: str, vocabularies: dict[str, Path], real_model: Callable[[str], Path]) -> Path:
    return real_model(name) if ":" in name else vocabularies[name]


def _differences(tokenizer: Tokenizer, oracle: LlamaVocab, seed: str, n: int) -> list[str]:
    rng = random.Random(seed)
    specials = sorted(tokenizer.special_texts())
    specials = rng.sample(specials, min(50, len(specials)))
    out = []
    for i in range(n):
        text = random_text(rng, specials)
        add_special, parse_special = bool(i & 1), bool(i & 2)
        ours = tokenizer.encode(text, add_special, parse_special)
        if ours != oracle.encode(text, add_special, parse_special):
            out.append(text)
    return out


@pytest.mark.parametrize("name", [*KINDS, *FILES])
def test_random_texts(
    name: str,
    vocabularies: dict[str, Path],
    real_model: Callable[[str], Path],
    figures: Callable[[str], None],
) -> None:
    path = _path(name, vocabularies, real_model)
    tokenizer = Tokenizer.from_metadata(read_metadata(path), splitter="llama.cpp")
    oracle = LlamaVocab(path)
    n = N_PER_KIND if name in KINDS else N_PER_FILE
    different = _differences(tokenizer, oracle, name, n)
    stops = {i for i in range(tokenizer.n_vocab) if oracle.is_stop(i)}
    # llama.cpp gives nothing for unused tokens, and [UNK_BYTE...] for tokens with characters
    # outside GPT-2's table.
    pieces = [
        i
        for i in range(0, tokenizer.n_vocab, 7)
        if tokenizer.token_bytes(i) != (piece := oracle.piece(i))
        and piece
        and not piece.startswith(b"[UNK_BYTE")
    ]
    oracle.close()
    allowed = DIFFERENCES.get(name, (0.0, ""))[0]
    figures(f"tokenizer {name}: {len(different)} of {n} random texts differ from llama.cpp")
    assert len(different) <= allowed * n, different[:3]
    assert tokenizer.stop_ids == stops
    assert pieces == []


@pytest.mark.parametrize(
    "name", [name for name, row in PRE_NAMES.items() if name and row.type.name not in UNTESTABLE]
)
def test_pre_tokenizer_types(name: str, vocabularies: dict[str, Path]) -> None:
    """Any type can be tried on any byte-level vocabulary."""
    path = vocabularies["gpt-2"]
    metadata = {**read_metadata(path), "tokenizer.ggml.pre": name}
    # ignore_merges and add_bos need a vocabulary that has what they ask for; splitting does not.
    oracle = LlamaVocab(path, name)
    row = PRE_NAMES[name].type
    ours = Tokenizer.from_metadata(metadata, splitter="llama.cpp")
    publisher = Tokenizer.from_metadata(metadata) if row.llama_cpp else None
    rng = random.Random(name)
    n_publisher = 0
    for _ in range(N_PER_TYPE):
        text = random_text(rng)
        expected = oracle.encode(text, add_special=False, parse_special=False)
        assert ours.encode(text, add_special=False) == expected, repr(text)
        if publisher and publisher.encode(text, add_special=False) != expected:
            n_publisher += 1
    oracle.close()
    allowed = PUBLISHER_DIFFERENCES.get(row.name, (0.0, ""))[0]
    assert n_publisher <= allowed * N_PER_TYPE


def test_all_57_types_have_a_name() -> None:
    assert len({row.type.name for row in PRE_NAMES.values()}) == 57
