"""Byte-level byte-pair encoding (`tokenizer.ggml.model` = gpt2): every byte has a printable
character, so any text can be encoded.

The table of bytes and characters is GPT-2's: printable Latin-1 stands for itself, the other 68
bytes are counted up from U+0100.
"""

from __future__ import annotations

from typing import Any

from localllm.text.pair_encoder import Merges, PairEncoder, PairRules
from localllm.text.vocabulary import Vocabulary


def _byte_of_char() -> dict[int, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in table]
    table.update({0x100 + i: byte for i, byte in enumerate(rest)})
    return table


_BYTE_OF_CHAR = _byte_of_char()


class ByteLevelEncoder:
    """The encoder of a byte-level vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, names: dict[str, int], merges: Merges, splitter: str
    ) -> None:
        self._texts = vocabulary.texts
        rules = PairRules(ignore_merges=vocabulary.pre.ignore_merges)
        self._pairs = PairEncoder(names, merges, rules, _pre_tokenizer(vocabulary, splitter))

    def encode(self, text: str, after_special: bool) -> list[int]:
        """See `Encoder`."""
        return self._pairs.encode(text)

    def piece(self, token_id: int) -> bytes:
        """See `Encoder`. Characters outside GPT-2's table stand for their UTF-8."""
        text = self._texts[token_id]
        try:
            return bytes([_BYTE_OF_CHAR[ord(char)] for char in text])
        except KeyError:
            return b"".join(
                bytes([_BYTE_OF_CHAR[ord(char)]]) if ord(char) in _BYTE_OF_CHAR else char.encode()
                for char in text
            )


def _pre_tokenizer(vocabulary: Vocabulary, splitter: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            *(
                pre_tokenizers.Split(Regex(pattern), "isolated")
                for pattern in vocabulary.pre.type.patterns(splitter)
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
