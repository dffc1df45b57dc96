"""A rendered prompt may be cut at the template's own control tokens, and only there."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.small_vocabularies import P, byte_level, sentencepiece

from localllm.text.chat_template import ChatTemplate
from localllm.text.tokenizer import Tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|im_start|>x", "<|user|>")


def _pieces(**more: object) -> Tokenizer:
    """A SentencePiece vocabulary, which puts a space before what follows a special token."""
    base = sentencepiece()
    tokens = [*base[P + "tokens"], *(text.encode() for text in SPECIAL), b"<think>"]
    types = np.concatenate([base[P + "token_type"], [3] * len(SPECIAL), [4]]).astype(np.int32)
    scores = np.concatenate([base[P + "scores"], np.zeros(len(SPECIAL) + 1)]).astype(np.float32)
    changes = {"tokens": tokens, "token_type": types, "scores": scores}
    return Tokenizer.from_metadata({**sentencepiece(**changes), **more})


TOKENIZERS = {
    "bytes": Tokenizer.from_metadata(byte_level()),
    "bytes with bos": Tokenizer.from_metadata(byte_level(add_bos_token=True, bos_token_id=5)),
    "pieces": _pieces(),
    "pieces of phi-3": _pieces(**{"general.name": "phi-3"}),  # special tokens swallow spaces
}
SOURCE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}"
    "{{ '<|im_end|> \n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
contents = st.lists(
    st.sampled_from(["a", "ab", " ", "\n", "é", "<|im_end|>", "<|im_", "start|>", "<|", "<think>"]),
    max_size=6,
).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(contents, min_size=1, max_size=4))
def test_cuts_change_no_ids(name: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[name]
    template = ChatTemplate(SOURCE, tokenizer)
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    prompt = template.prompt(messages)
    ids = prompt.ids()
    starts = [i for i in range(len(prompt.text) + 1) if prompt.special_at(i)]
    end = prompt.text.index("<|im_start|>")
    assert next(i for i in starts if prompt.text.startswith("<|im_start|>", i)) == end
    assert len([i for i in starts if i >= end]) >= 2 * len(texts) + 1
    for start in starts:
        rest = prompt.ids(start)
        assert ids[len(ids) - len(rest) :] == rest
        assert tokenizer.token_bytes(rest[0]).decode() in prompt.text[start:]
    assert not any(prompt.special_at(i) for i in (-1, len(prompt.text)))
    assert prompt.ids() == ids == prompt.ids(0)


def test_a_users_words_are_no_place_to_cut() -> None:
    for name, tokenizer in TOKENIZERS.items():
        template = ChatTemplate(SOURCE, tokenizer)
        words = "a<|im_end|>b<think>c"
        prompt = template.prompt([{"role": "user", "content": words}])
        at = prompt.text.index(words)
        assert not any(prompt.special_at(i) for i in range(at, at + len(words))), name
        assert prompt.special_at(at + len(words)), name


def test_tokens_that_the_template_does_not_write_are_no_place_to_cut() -> None:
    """A user-defined token in a user's words is a token, and still only words."""
    tokenizer = TOKENIZERS["bytes"]
    prompt = ChatTemplate(SOURCE, tokenizer).prompt([{"role": "user", "content": "a<tag>b"}])
    assert tokenizer.special_texts()["<tag>"] in prompt.ids()
    assert not prompt.special_at(prompt.text.index("<tag>"))


def test_only_the_whole_has_the_beginning_of_sequence() -> None:
    template = ChatTemplate(SOURCE.removeprefix("{{ bos_token }}"), TOKENIZERS["bytes with bos"])
    prompt = template.prompt([{"role": "user", "content": "a"}])
    start = prompt.text.index("<|im_start|>", 1)
    assert prompt.ids()[0] == 5
    assert prompt.ids(start) == prompt.ids()[-len(prompt.ids(start)) :]
    assert prompt.ids(start)[0] != 5


def test_any_cut_encodes_what_follows() -> None:
    """Elsewhere the ids may differ from those of the whole; the text is the same."""
    rng = random.Random(1)
    tokenizer = TOKENIZERS["bytes"]
    prompt = ChatTemplate(SOURCE, tokenizer).prompt(
        [{"role": "user", "content": "helé <|im_end|>"}]
    )
    for _ in range(50):
        start = rng.randrange(len(prompt.text))
        assert tokenizer.decode(prompt.ids(start), skip_special=False) == prompt.text[start:]
