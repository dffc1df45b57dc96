"""The formats of families against those that llama.cpp has built in, byte for byte."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import pytest
from reference.small_vocabularies import P, byte_level

from localllm.text.chat_template import ChatTemplate
from localllm.text.tokenizer import Tokenizer

TURNS = [("user", "How are you?"), ("assistant", "Well."), ("user", "And now?")]
SYSTEM = ("system", "Be brief.")

# Our name, llama.cpp's, and changes that make llama.cpp's text ours: it writes no token that begins
# a text, knows no model's own end token, and keeps a space that its tokenizer also adds.
SAME = [
    ("chatml", "chatml", {}),
    ("qwen", "chatml", {}),
    ("phi3", "phi3", {}),
    ("phi4", "phi4", {}),
    ("llama3", "llama3", {}),
    ("llama4", "llama4", {}),
    ("gemma", "gemma", {}),
    ("glm4", "chatglm4", {}),
    ("granite", "granite", {}),
    ("command-r", "command-r", {}),
    ("exaone", "exaone3", {}),
    ("deepseek-coder", "deepseek", {}),
    ("deepseek2", "deepseek2", {}),
    # The publisher's template has nothing between the system message and the question.
    ("deepseek", "deepseek3", {"Be brief.\n\n": "Be brief."}),
    ("mistral-v1", "mistral-v1", {" [INST] ": "[INST] "}),
    ("mistral-v3", "mistral-v3", {}),
    ("mistral-v3-tekken", "mistral-v3-tekken", {}),
    ("mistral-v7", "mistral-v7", {}),
    ("mistral-v7-tekken", "mistral-v7-tekken", {}),
    ("llama2", "llama2-sys-strip", {"[/INST]Well.</s>": "[/INST] Well. </s>"}),
    ("zephyr", "zephyr", {"<|endoftext|>": "</s>"}),
]


def built_in(name: str, turns: list[tuple[str, str]]) -> str:
    texts = [(role.encode(), content.encode()) for role, content in turns]
    chat = (llama_cpp.llama_chat_message * len(texts))(*texts)
    buffer = ctypes.create_string_buffer(4096)
    n = llama_cpp.llama_chat_apply_template(name.encode(), chat, len(texts), True, buffer, 4096)
    assert 0 < n < 4096
    return buffer.raw[:n].decode()


@pytest.mark.parametrize(("ours", "theirs", "changes"), SAME)
@pytest.mark.parametrize("turns", [TURNS[:1], TURNS, [SYSTEM, *TURNS]])
def test_built_in_formats(
    ours: str, theirs: str, changes: dict[str, str], turns: list[tuple[str, str]]
) -> None:
    tokens = [*byte_level()[P + "tokens"][:256], b"<s>", b"</s>"]
    types = np.array([1] * 256 + [3, 3], np.int32)
    metadata = byte_level(
        tokens=tokens, token_type=types, merges=[], bos_token_id=256, eos_token_id=257
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate.from_metadata(metadata, tokenizer, ours)
    expected = built_in(theirs, turns)
    for old, new in changes.items():
        expected = expected.replace(old, new)
    prompt = template.prompt([{"role": role, "content": content} for role, content in turns])
    assert prompt.text.replace("<s>", "") == expected
    assert not prompt.repairs
