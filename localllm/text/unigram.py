"""Unigram vocabularies (`tokenizer.ggml.model` = t5): the most probable way to cut a text, after a
table of replacements that SentencePiece compiles into the model."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from localllm.errors import FormatError
from localllm.text.encoders import guarded, ids_of, matchable
from localllm.text.metadata import Metadata, read_array, read_flag
from localllm.text.vocabulary import PREFIX, USER_DEFINED, Vocabulary

SPACE = "▁"
_SPACES = re.compile(" +")


class UnigramEncoder:
    """The encoder of a Unigram vocabulary."""

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata) -> None:
        self._texts = vocabulary.texts
        self._byte_values = vocabulary.byte_values
        self._add_space_prefix = vocabulary.add_space_prefix
        self._merges_spaces = read_flag(metadata, PREFIX + "remove_extra_whitespaces", False)
        self._charsmap = _charsmap(metadata)
        self._tokenizer = _build(vocabulary)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """See `Encoder`."""
        charsmap = self._charsmap
        if charsmap is not None:
            text = guarded("cannot normalize a text", lambda: str(charsmap.normalize_str(text)))
        if self._merges_spaces:
            # A run of spaces is one; the first word has one in front, nothing follows the last.
            words = [word for word in _SPACES.split(text) if word]
            text = "".join(SPACE + word for word in words)
        elif text.strip(" "):
            text = (SPACE if self._add_space_prefix else "") + text.replace(" ", SPACE)
        else:
            text = SPACE * len(text)
        return ids_of(self._tokenizer, text) if text else []

    def piece(self, token_id: int) -> bytes:
        """See `Encoder`."""
        value = self._byte_values.get(token_id)
        if value is not None:
            return bytes([value])
        return self._texts[token_id].replace(SPACE, " ").encode()


def _charsmap(metadata: Metadata) -> Any:
    """The normalizer of the compiled replacement table; None if the file has none."""
    key = PREFIX + "precompiled_charsmap"
    table = read_array(metadata, key, ("uint8", "int8"))
    if table is None:
        return None
    # Four bytes give the size of a trie of 32-bit units; texts that end in NUL follow it.
    trie_bytes = int(table[:4].view("<u4")[0]) if len(table) >= 4 else 0
    if trie_bytes % 4 or not 4 + trie_bytes < len(table):
        raise FormatError(
            f"{key} has {len(table)} bytes, its trie says {trie_bytes}: the trie must leave room"
        )
    from tokenizers import normalizers

    return guarded(f"{key} is malformed", lambda: normalizers.Precompiled(table.tobytes()))


def _build(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, models

    if vocabulary.scores is None:
        raise FormatError(f"the file has no {PREFIX}scores, which its kind of tokenizer needs")
    unknown = vocabulary.ids["unknown"]
    if unknown is None:
        raise FormatError(f"the file has no {PREFIX}unknown_token_id, which its tokenizer needs")
    bad = np.flatnonzero(~np.isfinite(vocabulary.scores))
    if len(bad):
        raise FormatError(f"{PREFIX}scores[{bad[0]}] is {vocabulary.scores[bad[0]]}, not finite")
    scores = vocabulary.scores.astype(float)
    scores[vocabulary.types == USER_DEFINED] = 0.0
    entries = list(zip(matchable(vocabulary), scores.tolist(), strict=True))
    return Tokenizer(
        guarded("the vocabulary does not fit", lambda: models.Unigram(entries, unknown, False))
    )
