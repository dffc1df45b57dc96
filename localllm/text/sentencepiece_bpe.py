"""Byte-pair encoding over characters with ▁ (U+2581) for the space and `<0xXX>` tokens for
characters that have no token: SentencePiece vocabularies (`tokenizer.ggml.model` = llama) and the
pre-tokenizer types that are not byte-level (Gemma 4 and its kin).
"""

from __future__ import annotations

from typing import Any

from localllm.text.byte_pairs import Pairs, usable
from localllm.text.encoders import HIDDEN, guarded, ids_of
from localllm.text.vocabulary import BYTE, UNKNOWN, Vocabulary

SPACE = "▁"


class SentencePieceEncoder:
    """The encoder of a vocabulary with ▁ and byte tokens."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        names: dict[str, int],
        merges: Pairs,
        lowercase: bool = False,
    ) -> None:
        self._texts = vocabulary.texts
        self._byte_values = vocabulary.byte_values
        self._prefix = SPACE if vocabulary.add_space_prefix else ""
        self._drops_spaces = vocabulary.pre.type.drops_spaces
        self._lowercase = lowercase
        self._tokenizer = _build(vocabulary, names, merges)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """See `Encoder`. A text that follows nothing or a special token gets a space in front if
        the vocabulary asks for it."""
        if self._lowercase:
            text = text.lower()
        if self._drops_spaces:
            return [i for word in text.split() for i in ids_of(self._tokenizer, word)]
        escaped = text.replace(" ", SPACE)
        return ids_of(self._tokenizer, self._prefix + escaped if after_special else escaped)

    def piece(self, token_id: int) -> bytes:
        """See `Encoder`."""
        value = self._byte_values.get(token_id)
        if value is not None:
            return bytes([value])
        return self._texts[token_id].replace(SPACE, " ").encode()


def _build(vocabulary: Vocabulary, names: dict[str, int], merges: Pairs) -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    options: dict[str, Any] = {
        "byte_fallback": bool(vocabulary.ids_of_type(BYTE)),
        "fuse_unk": False,
        "ignore_merges": vocabulary.pre.ignore_merges,
    }
    unknown = vocabulary.ids["unknown"]
    if unknown is not None:
        text = vocabulary.texts[unknown]
        options["unk_token"] = HIDDEN + text if vocabulary.types[unknown] == UNKNOWN else text
        if options["unk_token"] not in names:
            del options["unk_token"]
    try:
        model = models.BPE(names, merges, **options)
    except Exception:
        # One merge that names no token is enough for this; such merges cannot happen.
        kept = usable(merges, names)
        model = guarded(
            "the vocabulary and merges do not fit", lambda: models.BPE(names, kept, **options)
        )
    tokenizer = Tokenizer(model)
    if vocabulary.model != "llama":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated")
                for pattern in vocabulary.pre.type.patterns("publisher")
            ]
        )
    return tokenizer
