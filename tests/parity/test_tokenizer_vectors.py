"""The tokenizer vectors that llama.cpp ships, all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from vocab_files import read_metadata, sdist_vocabularies, vectors

from localllm.text.tokenizer import Tokenizer

WITH_VECTORS = (
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2"),
    *("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sdist_vocabularies(tmp_path_factory.mktemp("vocabularies"))


def test_every_vector_file_is_known(vocabularies: dict[str, Path]) -> None:
    assert {name for name, path in vocabularies.items() if vectors(path)} == set(WITH_VECTORS)


@pytest.mark.parametrize("splitter", ["publisher", "llama.cpp"])
@pytest.mark.parametrize("name", WITH_VECTORS)
def test_vectors(vocabularies: dict[str, Path], name: str, splitter: str) -> None:
    path = vocabularies[name]
    tokenizer = Tokenizer.from_metadata(read_metadata(path), splitter=splitter)
    pairs = vectors(path)
    assert len(pairs) >= 46
    for text, ids in pairs:
        assert tokenizer.encode(text, add_special=False) == ids, repr(text)
