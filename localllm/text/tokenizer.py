"""Text to token ids and back, for every kind of vocabulary that GGUF files hold."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from localllm.errors import ArgumentError
from localllm.text.byte_level import ByteLevelEncoder
from localllm.text.byte_pairs import ScoredMerges, WrittenMerges
from localllm.text.encoders import Encoder, garbage_collector_paused, matchable
from localllm.text.metadata import Metadata, read_flag
from localllm.text.sentencepiece_bpe import SentencePieceEncoder
from localllm.text.special_split import Allow, SpecialSplitter
from localllm.text.special_tokens import looks_like_control
from localllm.text.unigram import UnigramEncoder
from localllm.text.vocabulary import (
    CONTROL,
    PREFIX,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)
from localllm.text.wordpiece import WordPieceEncoder

SPLITTERS = ("publisher", "llama.cpp")


class Tokenizer:
    """A model's tokenizer. It never changes after it was made: threads may share it."""

    def __init__(self, vocabulary: Vocabulary, encoder: Encoder) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        texts = vocabulary.texts
        self._controls = frozenset(vocabulary.ids_of_type(CONTROL, UNKNOWN))
        written = frozenset(vocabulary.ids_of_type(USER_DEFINED))
        self._verbatim = self._controls | written
        strips = (vocabulary.strips_left, vocabulary.strips_right)
        self._plain = SpecialSplitter({texts[i]: i for i in sorted(written)}, *strips)
        self._full = SpecialSplitter({texts[i]: i for i in sorted(self._verbatim)}, *strips)
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def from_metadata(
        cls, metadata: Metadata, *, splitter: str = "publisher", cache_folder: Path | None = None
    ) -> Tokenizer:
        """Builds the tokenizer from GGUF metadata: scalars as Python values, numeric arrays as
        numpy arrays, string arrays as lists of bytes.

        `splitter`: which column of the pre-tokenizer table to use, "publisher" (as the model was
        trained) or "llama.cpp". `cache_folder`: where merges derived from a large SentencePiece
        vocabulary are kept; None keeps nothing.

        Raises `FormatError` for metadata that breaks its format and `UnsupportedError` for a kind
        of tokenizer that is not known.
        """
        if splitter not in SPLITTERS:
            raise ArgumentError(f"splitter is {splitter!r}, expected one of {SPLITTERS}")
        with garbage_collector_paused():
            vocabulary = read_vocabulary(metadata)
            return cls(vocabulary, _encoder(vocabulary, metadata, splitter, cache_folder))

    @property
    def n_vocab(self) -> int:
        """Number of tokens; ids go from 0 to n_vocab - 1."""
        return self._vocabulary.n_vocab

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence token."""
        return self._vocabulary.ids["bos"]

    @property
    def eos_id(self) -> int | None:
        """The end-of-sequence token."""
        return self._vocabulary.ids["eos"]

    @property
    def eot_id(self) -> int | None:
        """The end-of-turn token."""
        return self._vocabulary.ids["eot"]

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every token that ends a generation."""
        return self._vocabulary.stop_ids

    @property
    def add_bos(self) -> bool:
        """Whether `encode` starts with the beginning-of-sequence token by default."""
        return self._vocabulary.add_bos and self.bos_id is not None

    def special_id(self, name: str) -> int | None:
        """A special token by the name in its GGUF key: "fim_pre" for fim_pre_token_id."""
        return self._vocabulary.ids.get(name)

    def is_control(self, token_id: int) -> bool:
        """Whether a token is a control (or the unknown) token: never part of an answer's text."""
        if token_id in self._controls:
            return True
        self._check(token_id)
        return False

    def is_structural(self, token_id: int) -> bool:
        """Whether a token shapes a conversation, so that a user's words must not become it:
        control tokens and user-defined ones that look like them."""
        self._check(token_id)
        return token_id in self._controls or (
            token_id in self._verbatim and looks_like_control(self._vocabulary.texts[token_id])
        )

    def special_texts(self) -> dict[str, int]:
        """The texts of control and user-defined tokens, to their ids."""
        return {self._vocabulary.texts[i]: i for i in sorted(self._verbatim)}

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text: the bytes of its characters, which need not be whole; a
        control token's own name. Raises `ArgumentError` for an id outside the vocabulary."""
        piece = self._pieces.get(token_id)
        if piece is None:
            self._check(token_id)
            piece = (
                self._vocabulary.tokens[token_id]
                if token_id in self._verbatim
                else self._encoder.piece(token_id)
            )
            self._pieces[token_id] = piece
        return piece

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        allow: Allow | None = None,
    ) -> list[int]:
        """The token ids of a text.

        `add_special`: add the tokens that the vocabulary asks for at the start and the end.
        `parse_special`: control tokens' names in the text become these tokens; without it they
        are text like any other. `allow` then refuses some of the places.

        Raises `ArgumentError` for text that cannot be written in UTF-8 (a lone surrogate).
        """
        checked_text(text)
        first, last = self._frame() if add_special else (None, None)
        ids = [] if first is None else [first]
        after_special = True
        splitter = self._full if parse_special else self._plain
        for piece in splitter.pieces(text, allow):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(self._encoder.encode(piece, after_special))
            after_special = isinstance(piece, int)
        if last is not None:
            ids.append(last)
        return ids

    def special_starts(self, text: str, allow: Allow) -> dict[int, int]:
        """Where `encode` with `parse_special` and `allow` takes special tokens in a text: the
        character at which each begins, to its id."""
        starts: dict[int, int] = {}

        def noting(token_id: int, start: int, end: int) -> bool:
            if allow(token_id, start, end):
                starts[start] = token_id
                return True
            return False

        for _ in self._full.pieces(text, noting):
            pass
        return starts

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        `skip_special` leaves control tokens out. A space that `encode` would add in front of a
        text is taken away again.
        """
        return b"".join(self.pieces(ids, skip_special)).decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int], skip_special: bool = True) -> Iterable[bytes]:
        """The bytes of `decode`, token by token."""
        strip = self.strips_first_space
        for token_id in ids:
            piece = self.token_bytes(token_id)
            if token_id in self._controls:
                if not skip_special:
                    strip = False
                    yield piece
                continue
            if strip and piece[:1] == b" ":
                piece = piece[1:]
            strip = False
            yield piece

    @property
    def strips_first_space(self) -> bool:
        """Whether `decode` takes one space from the front of a text."""
        return self._vocabulary.add_space_prefix or self._vocabulary.model == "bert"

    def _frame(self) -> tuple[int | None, int | None]:
        """The tokens that `encode` puts before and after a text."""
        vocabulary = self._vocabulary
        if vocabulary.model == "bert":
            return vocabulary.ids["bos"], vocabulary.ids["seperator"]
        return (
            vocabulary.ids["bos"] if vocabulary.add_bos else None,
            vocabulary.ids["eos"] if vocabulary.add_eos else None,
        )

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.n_vocab:
            raise ArgumentError(f"token id {token_id} is outside the vocabulary of {self.n_vocab}")


def _encoder(
    vocabulary: Vocabulary, metadata: Metadata, splitter: str, cache_folder: Path | None
) -> Encoder:
    """The encoder for a vocabulary's kind."""
    if vocabulary.model == "bert":
        return WordPieceEncoder(vocabulary, metadata)
    if vocabulary.model == "t5":
        return UnigramEncoder(vocabulary, metadata)
    names = matchable(vocabulary)
    if vocabulary.model == "llama":
        scored = ScoredMerges(vocabulary, names, cache_folder)
        return SentencePieceEncoder(vocabulary, names, scored)
    merges = WrittenMerges(metadata, names)
    if vocabulary.pre.type.byte_level:
        return ByteLevelEncoder(vocabulary, names, merges, splitter)
    lowercase = read_flag(metadata, PREFIX + "normalizer.lowercase", False)
    return SentencePieceEncoder(vocabulary, names, merges, lowercase)


def checked_text(text: str, what: str = "the text") -> str:
    """`text` itself if it can be written in UTF-8. Raises `ArgumentError` if it holds half of a
    surrogate pair, as JSON escapes and broken command lines can produce."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise ArgumentError(
            f"{what} holds half a character (U+{ord(text[e.start]):04X} at position {e.start})",
            "Send characters outside the basic plane whole, not as one surrogate.",
        ) from None
    return text
