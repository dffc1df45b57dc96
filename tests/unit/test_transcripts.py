"""The tokens of earlier answers are taken over as they were sampled."""

from __future__ import annotations

import tracemalloc

import pytest
from reference.small_vocabularies import P, byte_level

from localllm.engine.transcripts import PLACE_BYTES, Transcripts
from localllm.text.chat_template import ChatTemplate
from localllm.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer() -> Tokenizer:
    import numpy as np

    metadata = byte_level()
    tokens = [*metadata[P + "tokens"][:256], b"ab", b"<|im_start|>", b"<|im_end|>"]
    types = np.array([1] * 257 + [3] * 2, np.int32)
    more = {"tokens": tokens, "token_type": types, "merges": [b"a b"], "eos_token_id": 258}
    return Tokenizer.from_metadata({**metadata, **{P + k: v for k, v in more.items()}})


def prompt(tokenizer: Tokenizer, *turns: str):  # type: ignore[no-untyped-def]
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": r, "content": t} for r, t in zip(roles, turns, strict=False)]
    return ChatTemplate(TEMPLATE, tokenizer).prompt(messages)


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """A byte a token: not what `encode` gives for "ab"."""
    return [tokenizer.encode(c, add_special=False)[0] for c in text]


def test_sampled_tokens_are_kept(tokenizer: Tokenizer) -> None:
    transcripts = Transcripts()
    first = transcripts.ids_of(prompt(tokenizer, "hi"))
    assert list(first.ids) == prompt(tokenizer, "hi").ids()
    sampled = plain(tokenizer, "abab")
    assert sampled != tokenizer.encode("abab", add_special=False)
    transcripts.add_answer(first, [*sampled, 258])
    whole = prompt(tokenizer, "hi", "abab", "more")
    second = transcripts.ids_of(whole)
    known = (*first.ids, *sampled, 258)
    assert second.ids[: len(known)] == known
    assert list(second.ids) != whole.ids() and second.changed_at is None
    text = b"".join(map(tokenizer.token_bytes, second.ids)).decode()
    assert text == whole.text
    # A third turn keeps both answers; asking the second again keeps the first.
    transcripts.add_answer(second, plain(tokenizer, "ab"))
    third = transcripts.ids_of(prompt(tokenizer, "hi", "abab", "more", "ab", "end"))
    assert third.ids[: len(second.ids) + 2] == (*second.ids, *plain(tokenizer, "ab"))
    again = transcripts.ids_of(whole)
    assert again.ids == second.ids and again.changed_at is None


def test_many_conversations(tokenizer: Tokenizer) -> None:
    """Each goes on with its own tokens, whatever was asked in between; so do two answers to one
    question."""
    transcripts = Transcripts()
    asked = [transcripts.ids_of(prompt(tokenizer, f"hi {i}")) for i in range(3)]
    for each in asked:
        for answer in ("abab", "ab"):
            transcripts.add_answer(each, plain(tokenizer, answer))
    for i, each in enumerate(asked):
        for answer in ("abab", "ab"):
            following = transcripts.ids_of(prompt(tokenizer, f"hi {i}", answer, "x"))
            known = (*each.ids, *plain(tokenizer, answer))
            assert following.ids[: len(known)] == known


def test_a_salt_keeps_them_apart(tokenizer: Tokenizer) -> None:
    transcripts = Transcripts()
    whole = prompt(tokenizer, "hi", "abab", "x")
    asked = transcripts.ids_of(prompt(tokenizer, "hi"), b"one")
    transcripts.add_answer(asked, plain(tokenizer, "abab"))
    assert list(transcripts.ids_of(whole, b"two").ids) == whole.ids()
    assert list(transcripts.ids_of(whole, b"one").ids) != whole.ids()


def test_what_is_not_to_be_kept(tokenizer: Tokenizer) -> None:
    transcripts = Transcripts()
    asked = transcripts.ids_of(prompt(tokenizer, "hi"), keep=False)
    transcripts.add_answer(asked, plain(tokenizer, "abab"))
    whole = prompt(tokenizer, "hi", "abab", "x")
    assert list(transcripts.ids_of(whole).ids) == whole.ids()


def test_the_oldest_go_first(tokenizer: Tokenizer) -> None:
    n_ids = len(prompt(tokenizer, "hi 0").ids()) + 4
    one = 3 * PLACE_BYTES + 4 * n_ids  # two of the question, one of the answer
    transcripts = Transcripts(max_bytes=2 * one)
    for i in (0, 1):
        asked = transcripts.ids_of(prompt(tokenizer, f"hi {i}"))
        transcripts.add_answer(asked, plain(tokenizer, "abab"))
    asked = transcripts.ids_of(prompt(tokenizer, "hi 0"))  # used again
    late = transcripts.ids_of(prompt(tokenizer, "hi 2"))
    whole = [prompt(tokenizer, f"hi {i}", "abab", "x") for i in range(2)]
    assert list(transcripts.ids_of(whole[1], keep=False).ids) == whole[1].ids()
    assert transcripts.ids_of(whole[0], keep=False).ids[: len(asked.ids)] == asked.ids
    # An answer whose question was given up is not kept, and breaks nothing.
    for i in range(3, 9):
        transcripts.ids_of(prompt(tokenizer, f"hi {i}"))
    transcripts.add_answer(late, plain(tokenizer, "abab"))
    whole2 = prompt(tokenizer, "hi 2", "abab", "x")
    assert list(transcripts.ids_of(whole2).ids) == whole2.ids()


def test_short_answers_fill_no_more_than_the_limit(tokenizer: Tokenizer) -> None:
    """A server gives many of them, each of which takes more than its tokens."""
    max_bytes = 1 << 18
    transcripts = Transcripts(max_bytes)
    asked = transcripts.ids_of(prompt(tokenizer, "hi"))
    tracemalloc.start()
    try:
        for i in range(2000):
            transcripts.add_answer(asked, plain(tokenizer, f"{i:04}"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max_bytes / 2 < held < max_bytes


def test_a_changed_past_is_encoded_anew(tokenizer: Tokenizer) -> None:
    transcripts = Transcripts()
    asked = transcripts.ids_of(prompt(tokenizer, "hi"))
    transcripts.add_answer(asked, [*plain(tokenizer, "abab"), 258])
    n_before = asked.ids.index(257, 1)  # where the answer's header begins
    for turns, changed_at in (
        (("hi", "abax", "more"), n_before),
        (("hi", "aba", "x"), n_before),
        (("ho", "abab", "more"), None),
        (("h",), None),
        (("hi",), None),
    ):
        one = prompt(tokenizer, *turns)
        again = transcripts.ids_of(one)
        assert list(again.ids) == one.ids()
        assert again.changed_at == changed_at, turns


def test_what_a_user_writes_is_no_control_token(tokenizer: Tokenizer) -> None:
    """The text of a prompt that was given, written by a user: the ids are those of text."""
    transcripts = Transcripts()
    given = prompt(tokenizer, "a")
    transcripts.ids_of(given)
    written = prompt(tokenizer, given.text.removeprefix("<|im_start|>user\n"))
    assert written.text.startswith(given.text)
    asked = transcripts.ids_of(written)
    assert list(asked.ids) == written.ids() and asked.ids.count(257) == 2
    transcripts.add_answer(asked, [258])
    assert list(transcripts.ids_of(given).ids) == given.ids()


def test_what_the_model_said_is_no_way_in_either(tokenizer: Tokenizer) -> None:
    """A model that said <|im_start|> itself: somebody who writes that writes text."""
    transcripts = Transcripts()
    first = transcripts.ids_of(prompt(tokenizer, "hi"))
    transcripts.add_answer(first, [257, *plain(tokenizer, "ab"), 258])
    whole = prompt(tokenizer, "hi", "<|im_start|>ab", "x")
    ids = transcripts.ids_of(whole).ids
    assert list(ids) == whole.ids() and ids[: len(first.ids)] == first.ids
    assert ids.count(257) == prompt(tokenizer, "hi", "ab", "x").ids().count(257)


def test_half_a_character(tokenizer: Tokenizer) -> None:
    """An answer that ends in the middle of a character: the text differs, so it is encoded."""
    transcripts = Transcripts()
    asked = transcripts.ids_of(prompt(tokenizer, "hi"))
    transcripts.add_answer(asked, tokenizer.encode("é", add_special=False)[:1])
    whole = prompt(tokenizer, "hi", "", "x")
    assert list(transcripts.ids_of(whole).ids) == whole.ids()
