"""Tokenizers from small vocabularies: what hostile metadata gives, flags, special tokens."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference.small_vocabularies import P, byte_level, sentencepiece, unigram, wordpiece

from localllm.errors import ArgumentError, FormatError, LocalLLMError, UnsupportedError
from localllm.text import byte_pairs, pair_encoder
from localllm.text.tokenizer import Tokenizer

MAKERS = {"gpt2": byte_level, "llama": sentencepiece, "bert": wordpiece, "t5": unigram}
ARRAYS = ("tokens", "token_type", "scores", "merges", "precompiled_charsmap")
SCALARS = ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token", "model", "pre")
VALUES: tuple[Any, ...] = (
    *(0, -2, 2**31, 2**63, 1e308, float("nan"), True, "", "x", b"\xff", [], [b"x"], [1], [None]),
    *(np.zeros(0, np.int32), np.zeros((2, 2), np.float32), np.zeros(7, np.uint8)),
    *(np.full(7, 99, np.int32), np.full(264, np.nan, np.float32), np.zeros(7, np.float64)),
    *(np.array(["a"]), np.zeros(264, bool), {"a": 1}, object()),
)


@pytest.mark.parametrize("model", MAKERS)
def test_every_key_with_every_kind_of_value(model: str) -> None:
    """Nothing but an error of this program comes out, and a tokenizer that is made works."""
    for key in ARRAYS + SCALARS:
        for value in VALUES:
            metadata = {**MAKERS[model](), P + key: value}
            try:
                tokenizer = Tokenizer.from_metadata(metadata)
                tokenizer.decode(tokenizer.encode("hello a b é"))
            except LocalLLMError as e:
                assert e.message
                assert len(e.message) < 1000


@pytest.mark.parametrize("model", MAKERS)
def test_missing_keys(model: str) -> None:
    complete = MAKERS[model]()
    for key in complete:
        metadata = {k: v for k, v in complete.items() if k != key}
        try:
            Tokenizer.from_metadata(metadata).encode("a")
        except (FormatError, UnsupportedError) as e:
            assert key.rpartition(".")[2] in e.message


@pytest.mark.parametrize("text", [b"<0x-1>", b"<0x100>", b"<0xZZ>", b"<0x", b"<0x>", b"\xff", b"x"])
def test_byte_tokens_out_of_range(text: bytes) -> None:
    metadata = sentencepiece()
    metadata[P + "tokens"][10] = text
    with pytest.raises(FormatError, match=r"tokens\[10\].*expected <0x00> to <0xFF>"):
        Tokenizer.from_metadata(metadata)


def test_messages_name_key_value_and_limit() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"bos_token_id": 264}, r"tokenizer.ggml.bos_token_id is 264, .* 261 tokens"),
        ({"bos_token_id": "1"}, r"tokenizer.ggml.bos_token_id is '1' \(a str\)"),
        ({"token_type": np.ones(3, np.int32)}, r"token_type has 3 elements, .* 261 tokens"),
        ({"token_type": np.ones(261, np.float32)}, r"token_type is an array of float32"),
        ({"token_type": np.full(261, 7, np.int32)}, r"token_type\[0\] is 7, .* from 0 to 6"),
        ({"merges": [b"he"]}, r"merges\[0\] is b?'he', expected two tokens"),
        ({"merges": [b"\xff \xfe"]}, r"merges\[0\] .* not UTF-8"),
        ({"pre": "no-such"}, r"tokenizer.ggml.pre is 'no-such'"),
        ({"model": "no-such"}, r"tokenizer.ggml.model is 'no-such'; supported are"),
        ({"tokens": [b"a", b"b", b"a"]}, r"tokens\[2\] is b'a', the same text as .*tokens\[0\]"),
        ({"tokens": [b"a" * 70000]}, r"tokens\[0\] has 70000 bytes, at most 65536"),
        ({"add_bos_token": 2}, r"add_bos_token is 2"),
    ]
    for changes, message in cases:
        with pytest.raises(LocalLLMError, match=message):
            Tokenizer.from_metadata(byte_level(**changes))


def test_no_token_values_and_defaults_outside_the_vocabulary() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(bos_token_id=0xFFFFFFFF, add_bos_token=True))
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    tokenizer.encode("a")
    small = {P + "model": "gpt2", P + "tokens": [b"a"], P + "merges": []}
    assert Tokenizer.from_metadata(small).eos_id is None


def test_merges_that_name_no_token_are_left_out() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(merges=[b"q z", b"h e", b"he l", b"x yz"]))
    assert tokenizer.encode("hel", add_special=False) == [257]


def test_hostile_charsmap() -> None:
    for table in (
        b"",
        b"\xff\xff\xff\xff",
        b"\x04\0\0\0abcd",
        b"\x04\0\0\0abcde",
        b"\x08\0\0\0" + b"\xff" * 90,
    ):
        metadata = unigram(precompiled_charsmap=np.frombuffer(table, np.uint8))
        try:
            Tokenizer.from_metadata(metadata).encode("a é ﬁ")
        except FormatError:
            continue


def test_flags_and_prefix() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    ab = tokenizer.encode("ab", add_special=False)
    assert [tokenizer.token_bytes(i) for i in ab] == [b" ab"]
    assert tokenizer.encode("ab") == [1, *ab]
    assert tokenizer.encode("") == [1]
    plain = Tokenizer.from_metadata(
        sentencepiece(add_bos_token=False, add_eos_token=True, add_space_prefix=False)
    )
    assert [plain.token_bytes(i) for i in plain.encode("ab")] == [b"ab", b"</s>"]
    # After a special token the prefix comes again.
    ids = tokenizer.encode("ab</s>ab", add_special=False, parse_special=True)
    assert ids == [*ab, 2, *ab]


def test_special_tokens_only_when_asked() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    text = "hel<|im_end|>hel"
    assert tokenizer.encode(text, parse_special=True) == [257, 259, 257]
    plain = tokenizer.encode(text)
    assert 259 not in plain
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode([257, 259, 257]) == "helhel"
    assert tokenizer.decode([257, 259, 257], skip_special=False) == text
    # User-defined tokens are always taken.
    assert tokenizer.encode("<tag>") == [260]
    assert tokenizer.stop_ids == {259}
    assert tokenizer.eot_id == 259
    assert tokenizer.is_control(258)
    assert not tokenizer.is_control(260)


def test_control_tokens_are_never_made_by_merges() -> None:
    """A file may have merges that lead to a control token; a plain text must not get there."""
    metadata = byte_level(merges=[b"h e", b"he l"], eos_token_id=257)
    metadata[P + "token_type"][257] = 3
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("hel") == [256, 75]
    assert tokenizer.encode("hel", parse_special=True) == [257]
    unpieced = Tokenizer.from_metadata(unigram())
    assert 1 not in unpieced.encode("</s>", add_special=False)


def test_wordpiece_and_unigram() -> None:
    tokenizer = Tokenizer.from_metadata(wordpiece())
    assert tokenizer.encode("Playing!") == [2, 4, 5, 6, 3]
    assert tokenizer.decode([2, 4, 5, 6, 3]) == "playing !"
    pieces = Tokenizer.from_metadata(unigram())
    assert pieces.encode("ab") == [3, 4, 1]
    assert pieces.decode([3, 4, 1]) == "ab"


def test_whitespace_vocabulary() -> None:
    metadata = byte_level(
        model="whitespace", pre="whitespace", merges=[b"a b"], tokens=[b"a", b"b", b"ab", b"A"]
    )
    metadata[P + "token_type"] = np.ones(4, np.int32)
    metadata |= {P + "bos_token_id": 0, P + "eos_token_id": 0}
    assert Tokenizer.from_metadata(metadata).encode(" ab  Aab\n") == [2, 3, 2]
    metadata[P + "normalizer.lowercase"] = True
    assert Tokenizer.from_metadata(metadata).encode("AB ab") == [2, 2]


def test_texts_that_are_not_utf8() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    with pytest.raises(ArgumentError, match=r"half a character \(U\+D800 at position 1\)"):
        tokenizer.encode("a\ud800")
    metadata = byte_level()
    metadata[P + "tokens"][3] = b"\xff\xfe"
    broken = Tokenizer.from_metadata(metadata)
    assert broken.n_vocab == 261
    assert 3 not in broken.encode("$ \uffff[INVALID_3]\uffff", add_special=False)


def test_ids_outside_the_vocabulary() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    for token_id in (-1, 261, 2**31):
        with pytest.raises(ArgumentError, match="outside the vocabulary of 261"):
            tokenizer.decode([token_id])


def test_merge_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_encoder, "FIRST_CHARS", 0)  # the first texts need no table
    fresh = Tokenizer.from_metadata(sentencepiece()).encode("ab a é b")
    assert (
        Tokenizer.from_metadata(sentencepiece(), cache_folder=tmp_path).encode("ab a é b") == fresh
    )
    (file,) = tmp_path.iterdir()
    sound = file.read_bytes()
    assert (
        Tokenizer.from_metadata(sentencepiece(), cache_folder=tmp_path).encode("ab a é b") == fresh
    )
    assert file.read_bytes() == sound
    for broken in (b"", sound[:-3], b"x" + sound[1:], sound[:-1] + b"\x7f", sound[:40]):
        file.write_bytes(broken)
        tokenizer = Tokenizer.from_metadata(sentencepiece(), cache_folder=tmp_path)
        assert tokenizer.encode("ab a é b") == fresh
        assert file.read_bytes() == sound
    other = sentencepiece()
    other[P + "scores"] = other[P + "scores"][::-1].copy()
    Tokenizer.from_metadata(other, cache_folder=tmp_path).encode("a")
    assert len(list(tmp_path.iterdir())) == 2
    unwritable = tmp_path / "file"
    unwritable.write_text("x")
    Tokenizer.from_metadata(sentencepiece(), cache_folder=unwritable / "below").encode("a")


@pytest.mark.parametrize(
    ("lines", "pairs"),
    [
        ([], []),
        ([b"a b"], [("a", "b")]),
        ([b"a b", b"ab \xc3\xa9"], [("a", "b"), ("ab", "é")]),
        ([b" a b", b"a b"], [(" a", "b"), ("a", "b")]),  # a space in the left part
        ([b"a b c", b"a  b"], [("a", "b c"), ("a", " b")]),  # or in the right one
        ([b"\n b", b"\n\n \n"], [("\n", "b"), ("\n\n", "\n")]),
        ([b"a b c", b"ab"], None),  # as many spaces as a sound file
        ([b"a b", b"c ", b"d e"], None),
    ],
)
def test_lines_of_merges(lines: list[bytes], pairs: list[tuple[str, str]] | None) -> None:
    if pairs is None:
        with pytest.raises(FormatError, match=r"merges\[1\] is .* expected two tokens"):
            byte_pairs.WrittenMerges({P + "merges": lines}, {})
    else:
        names = {left + right: 0 for left, right in pairs}
        merges = byte_pairs.WrittenMerges({P + "merges": lines}, names)
        assert merges.pairs() == pairs
        assert [merges.rank(left, right) for left, right in pairs] == [*range(len(pairs))]
        assert merges.rank("b", "a") is None


@pytest.mark.parametrize("seed", range(6))
def test_merges_that_never_run_are_left_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three letters nearly every token can be cut in several ways; scores are random, some
    equal. The ids are those of all merges, with a fraction of them."""
    rng = random.Random(seed)
    words = {"".join(rng.choices("abc", k=rng.randrange(2, 7))) for _ in range(120)}
    texts = ["<unk>", "a", "b", "c", *sorted(words)]
    metadata = {
        P + "model": "llama",
        P + "tokens": [text.encode() for text in texts],
        P + "scores": np.array([rng.randrange(60) for _ in texts], np.float32),
        P + "token_type": np.array([2] + [1] * (len(texts) - 1), np.int32),
        P + "add_space_prefix": False,
    }
    n_merges: list[int] = []

    def all_of_them(vocabulary: object, ids: object, pairs: Any, made: Any) -> Any:
        n_merges.append(len(pairs))
        return np.ones(len(pairs), np.bool_)

    small = Tokenizer.from_metadata(metadata)
    small_texts = ["".join(rng.choices("abc", k=rng.randrange(1, 40))) for _ in range(500)]
    expected = [small.encode(text) for text in small_texts]
    monkeypatch.setattr(pair_encoder, "FIRST_CHARS", 0)
    few = Tokenizer.from_metadata(metadata)
    assert [few.encode(text) for text in small_texts] == expected
    monkeypatch.setattr(byte_pairs, "_can_happen", all_of_them)
    full = Tokenizer.from_metadata(metadata)
    assert [full.encode(text) for text in small_texts] == expected
    assert n_merges[0] > 1.3 * len(words)


@pytest.mark.parametrize("seed", range(8))
def test_first_texts_have_the_ids_of_the_table(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters without a token, with and without bytes and an unknown token for them; merges that
    stand twice, that name no token, or make a word that is never cut."""
    rng = random.Random(seed)
    letters = "abcdé"
    words = sorted({"".join(rng.choices(letters, k=rng.randrange(2, 6))) for _ in range(150)})
    n_bytes = rng.choice((0, 256, 200))
    texts = ["<unk>", *(f"<0x{i:02X}>" for i in range(n_bytes)), *letters[: rng.choice((4, 5))]]
    types = [2] + [6] * n_bytes + [1] * (len(texts) - 1 - n_bytes + len(words))
    lines = [f"{word[:at]} {word[at:]}" for word in words for at in range(1, len(word))]
    rng.shuffle(lines)
    metadata = {
        P + "model": "gemma4",
        P + "pre": rng.choice(("gemma4", "llama-bpe")),
        P + "tokens": [text.encode() for text in (*texts, *words)],
        P + "token_type": np.array(types, np.int32),
        P + "merges": [line.encode() for line in (*lines, *lines[:9], "x y")],
        **({P + "unknown_token_id": 0} if seed % 2 else {}),
    }
    small = Tokenizer.from_metadata(metadata)
    alphabet = letters + "xyßß €\n"
    made = ["".join(rng.choices(alphabet, k=rng.randrange(1, 40))) for _ in range(400)]
    first = [small.encode(text, add_special=False) for text in made]
    monkeypatch.setattr(pair_encoder, "FIRST_CHARS", 0)
    table = Tokenizer.from_metadata(metadata)
    for text, ids in zip(made, first, strict=True):
        assert table.encode(text, add_special=False) == ids, text


def test_the_table_is_built_when_texts_have_become_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_encoder, "FIRST_CHARS", 10)
    built: list[int] = []
    build = pair_encoder.PairEncoder._build
    monkeypatch.setattr(
        pair_encoder.PairEncoder,
        "_build",
        lambda self, merges: built.append(len(merges)) or build(self, merges),
    )
    tokenizer = Tokenizer.from_metadata(byte_level())
    expected = tokenizer.encode("hello")
    assert tokenizer.encode("hello") == expected and built == []
    assert tokenizer.encode("hello") == expected and built == [2]
    assert tokenizer.encode("hello") == expected and built == [2]


def test_imports_stay_light() -> None:
    code = (
        "import sys, localllm.text.tokenizer, localllm.text.stream, localllm.text.chat_template\n"
        "import localllm.text.answer_stream, localllm.text.thinking_switch\n"
        "print([m for m in ('jinja2', 'tokenizers', 'llama_cpp') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert out.stdout.strip() == "[]"
