"""WordPiece vocabularies (`tokenizer.ggml.model` = bert): words are looked up from the left, the
longest token first.

GGUF stores the start of a word as `▁word` and a continuation as it stands; BERT writes `word` and
`##word`. Normalization is BERT's own (`BertNormalizer`), which keeps Hangul and Indic vowel signs
that llama.cpp loses.
"""

from __future__ import annotations

from typing import Any

from localllm.errors import FormatError
from localllm.text.encoders import HIDDEN, guarded, ids_of
from localllm.text.metadata import Metadata, read_flag
from localllm.text.vocabulary import CONTROL, PREFIX, UNKNOWN, Vocabulary

SPACE = "▁"
_CONTINUES = "##"


class WordPieceEncoder:
    """The encoder of a WordPiece vocabulary."""

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata) -> None:
        self._texts = vocabulary.texts
        self._tokenizer = _build(vocabulary, metadata)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """See `Encoder`."""
        return ids_of(self._tokenizer, text)

    def piece(self, token_id: int) -> bytes:
        """See `Encoder`."""
        return self._texts[token_id].replace(SPACE, " ").encode()


def _build(vocabulary: Vocabulary, metadata: Metadata) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    unknown = vocabulary.ids["unknown"]
    if unknown is None:
        raise FormatError(f"the file has no {PREFIX}unknown_token_id, which its tokenizer needs")
    special = set(vocabulary.ids_of_type(CONTROL, UNKNOWN)) | {unknown}
    names: dict[str, int] = {}
    for i, text in enumerate(vocabulary.texts):
        if i in special:
            names[HIDDEN + text] = i
        elif text.startswith(SPACE):
            names[text[len(SPACE) :]] = i
        else:
            names[_CONTINUES + text] = i
    unk_token = HIDDEN + vocabulary.texts[unknown]
    model = guarded(
        "the vocabulary does not fit",
        lambda: models.WordPiece(names, unk_token=unk_token, max_input_chars_per_word=100),
    )
    lowercase = read_flag(metadata, PREFIX + "normalizer.lowercase", True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=read_flag(metadata, PREFIX + "normalizer.strip_accents", lowercase),
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
