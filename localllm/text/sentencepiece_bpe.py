"""Byte-pair encoding over characters with ▁ (U+2581) for the space and `<0xXX>` tokens for
characters that have no token: SentencePiece vocabularies (`tokenizer.ggml.model` = llama) and the
pre-tokenizer types that are not byte-level (Gemma 4 and its kin).
"""

from __future__ import annotations

from typing import Any

from localllm.text.encoders import HIDDEN
from localllm.text.pair_encoder import Merges, PairEncoder, PairRules
from localllm.text.vocabulary import BYTE, UNKNOWN, Vocabulary

SPACE = "▁"


class SentencePieceEncoder:
    """The encoder of a vocabulary with ▁ and byte tokens."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        names: dict[str, int],
        merges: Merges,
        lowercase: bool = False,
    ) -> None:
        self._texts = vocabulary.texts
        self._byte_values = vocabulary.byte_values
        self._prefix = SPACE if vocabulary.add_space_prefix else ""
        self._drops_spaces = vocabulary.pre.type.drops_spaces
        self._lowercase = lowercase
        rules = PairRules(
            ignore_merges=vocabulary.pre.ignore_merges,
            byte_fallback=bool(vocabulary.ids_of_type(BYTE)),
            unknown=_unknown(vocabulary, names),
        )
        cut = None if vocabulary.model == "llama" else _pre_tokenizer(vocabulary)
        self._pairs = PairEncoder(names, merges, rules, cut)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """See `Encoder`. A text that follows nothing or a special token gets a space in front if
        the vocabulary asks for it."""
        if self._lowercase:
            text = text.lower()
        if self._drops_spaces:
            return [i for word in text.split() for i in self._pairs.encode(word)]
        escaped = text.replace(" ", SPACE)
        return self._pairs.encode(self._prefix + escaped if after_special else escaped)

    def piece(self, token_id: int) -> bytes:
        """See `Encoder`."""
        value = self._byte_values.get(token_id)
        if value is not None:
            return bytes([value])
        return self._texts[token_id].replace(SPACE, " ").encode()


def _unknown(vocabulary: Vocabulary, names: dict[str, int]) -> str | None:
    """The name of the token for characters that have no other."""
    unknown = vocabulary.ids["unknown"]
    if unknown is None:
        return None
    text = vocabulary.texts[unknown]
    name = HIDDEN + text if vocabulary.types[unknown] == UNKNOWN else text
    return name if name in names else None


def _pre_tokenizer(vocabulary: Vocabulary) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in vocabulary.pre.type.patterns("publisher")
        ]
    )
