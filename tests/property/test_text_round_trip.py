"""Whatever the text and wherever tokens cut it: decode undoes encode, and a stream of tokens says
what the whole says."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.small_vocabularies import byte_level, sentencepiece

from localllm.store.inspect import GgufFile
from localllm.text.stream import StreamDecoder
from localllm.text.tokenizer import Tokenizer

N_SPLITS = 1_000_000 if os.environ.get("FULL") == "1" else 50_000

BYTES = Tokenizer.from_metadata(byte_level())
PIECES = Tokenizer.from_metadata(sentencepiece())

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def _without_prefix_characters(text: str) -> bool:
    """SentencePiece writes the space as ▁, so a ▁ in a text cannot come back."""
    return "▁" not in text


@settings(deadline=None)
@given(texts)
def test_byte_level_round_trip(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


@settings(deadline=None)
@given(texts.filter(_without_prefix_characters))
def test_sentencepiece_round_trip(text: str) -> None:
    assert PIECES.decode(PIECES.encode(text)) == text


@settings(deadline=None)
@given(texts, st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>"])))
def test_plain_text_never_holds_control_tokens(text: str, names: list[str]) -> None:
    whole = text.join([*names, ""])
    ids = BYTES.encode(whole)
    assert not any(BYTES.is_control(i) for i in ids)
    assert BYTES.decode(ids) == whole


@settings(deadline=None)
@given(st.lists(st.integers(0, BYTES.n_vocab - 1), max_size=80), st.booleans())
def test_stream_of_any_tokens(ids: list[int], skip_special: bool) -> None:
    stream = StreamDecoder(BYTES, skip_special)
    parts = [stream.feed(i) for i in ids]
    assert "".join(parts) + stream.finish() == BYTES.decode(ids, skip_special)


@settings(deadline=None)
@given(st.lists(st.integers(0, PIECES.n_vocab - 1), max_size=80), st.booleans())
def test_stream_of_any_pieces(ids: list[int], skip_special: bool) -> None:
    stream = StreamDecoder(PIECES, skip_special)
    parts = [stream.feed(i) for i in ids]
    assert "".join(parts) + stream.finish() == PIECES.decode(ids, skip_special)


class CutBytes:
    """Stands for a tokenizer whose tokens are the pieces of one text."""

    strips_first_space = False

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_control(self, token_id: int) -> bool:
        return False


def test_random_splits_invent_nothing() -> None:
    """Bar 7: text cut at any byte comes out whole; characters appear as soon as they are complete;
    bytes that are no UTF-8 become what they become in the whole."""
    rng = random.Random(20260)
    alphabet = "aé€漢😀\u0301\u200d🏽\n 字Ж\u00a0"
    for i in range(N_SPLITS):
        whole = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 12))).encode()
        if i % 4 == 0:
            at = rng.randrange(len(whole))
            whole = whole[:at] + bytes([rng.randrange(256)]) + whole[at + rng.randint(0, 1) :]
        cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randint(0, 6)))
        bounds = [0, *cuts, len(whole)]
        pieces = [whole[a:b] for a, b in itertools.pairwise(bounds)]
        stream = StreamDecoder(cast(Tokenizer, CutBytes(pieces)))
        shown = ""
        for j in range(len(pieces)):
            shown += stream.feed(j)
            done = b"".join(pieces[: j + 1])
            # At most the three first bytes of a character are held back.
            cut = (done[: len(done) - held].decode("utf-8", "replace") for held in range(4))
            assert shown in cut, pieces
        assert shown + stream.finish() == whole.decode("utf-8", "replace"), pieces


@pytest.mark.parametrize("name", ["smollm2:135m", "gemma3:270m"])
def test_real_models(name: str, real_model: Callable[[str], object]) -> None:
    tokenizer = Tokenizer.from_metadata(GgufFile(real_model(name)).metadata)
    rng = random.Random(name)
    for text in (
        "Straße, 漢字 and 😀👩🏽‍🚀!",
        "  two  spaces\n\n\tand\ttabs ",
        "🏴󠁧󠁢󠁷󠁬󠁳󠁿",
        "\x00\x7f\u0301",
    ):
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == text
    for _ in range(200):
        ids = [rng.randrange(tokenizer.n_vocab) for _ in range(30)]
        stream = StreamDecoder(tokenizer)
        assert stream.feed_all(ids) + stream.finish() == tokenizer.decode(ids)
