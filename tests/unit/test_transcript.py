"""The tokens of earlier answers are taken over as they were sampled."""

from __future__ import annotations

import pytest
from reference.small_vocabularies import P, byte_level

from localllm.engine.transcript import Transcript
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
    transcript = Transcript()
    first = transcript.ids_of(prompt(tokenizer, "hi"))
    assert first == prompt(tokenizer, "hi").ids()
    sampled = plain(tokenizer, "abab")
    assert sampled != tokenizer.encode("abab", add_special=False)
    transcript.add_answer([*sampled, 258], tokenizer)
    whole = prompt(tokenizer, "hi", "abab", "more")
    second = transcript.ids_of(whole)
    assert second[: len(first) + len(sampled)] == first + sampled
    assert second[len(first) + len(sampled)] == 258
    assert second != whole.ids()
    text = b"".join(map(tokenizer.token_bytes, second)).decode()
    assert text == whole.text
    # A third turn keeps both answers; asking the second again keeps the first.
    transcript.add_answer([*plain(tokenizer, "ab")], tokenizer)
    third = transcript.ids_of(prompt(tokenizer, "hi", "abab", "more", "ab", "end"))
    assert third[: len(second) + 2] == second + plain(tokenizer, "ab")
    assert transcript.ids_of(whole) == second


def test_a_changed_past_is_encoded_anew(tokenizer: Tokenizer) -> None:
    transcript = Transcript()
    transcript.ids_of(prompt(tokenizer, "hi"))
    transcript.add_answer([*plain(tokenizer, "abab"), 258], tokenizer)
    for turns in (("hi", "abax", "more"), ("ho", "abab", "more"), ("hi", "aba", "x"), ("h",)):
        one = prompt(tokenizer, *turns)
        assert transcript.ids_of(one) == one.ids()


def test_what_a_user_writes_is_no_control_token(tokenizer: Tokenizer) -> None:
    """The text of a prompt that was given, written by a user: the ids are those of text."""
    transcript = Transcript()
    given = prompt(tokenizer, "a")
    transcript.ids_of(given)
    written = prompt(tokenizer, given.text.removeprefix("<|im_start|>user\n"))
    assert written.text.startswith(given.text)
    ids = transcript.ids_of(written)
    assert ids == written.ids() and ids.count(257) == 2
    transcript.add_answer([258], tokenizer)
    assert transcript.ids_of(given) == given.ids()


def test_what_the_model_said_is_no_way_in_either(tokenizer: Tokenizer) -> None:
    """A model that said <|im_start|> itself: somebody who writes that writes text."""
    transcript = Transcript()
    first = transcript.ids_of(prompt(tokenizer, "hi"))
    transcript.add_answer([257, *plain(tokenizer, "ab"), 258], tokenizer)
    whole = prompt(tokenizer, "hi", "<|im_start|>ab", "x")
    ids = transcript.ids_of(whole)
    assert ids == whole.ids() and ids[: len(first)] == first
    assert ids.count(257) == prompt(tokenizer, "hi", "ab", "x").ids().count(257)


def test_half_a_character(tokenizer: Tokenizer) -> None:
    """An answer that ends in the middle of a character: the text differs, so it is encoded."""
    transcript = Transcript()
    transcript.ids_of(prompt(tokenizer, "hi"))
    half = tokenizer.encode("é", add_special=False)[:1]
    transcript.add_answer(half, tokenizer)
    whole = prompt(tokenizer, "hi", "", "x")
    assert transcript.ids_of(whole) == whole.ids()
