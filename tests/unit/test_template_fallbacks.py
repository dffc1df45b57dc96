"""Chat templates for files without one: every family is found by its signs and takes every kind of
conversation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.small_vocabularies import P, byte_level

from localllm.text.chat_template import ChatTemplate
from localllm.text.template_fallbacks import FALLBACKS, find_fallback
from localllm.text.tokenizer import Tokenizer

IM = ("<|im_start|>", "<|im_end|>")
INST = ("[INST]", "[/INST]")

# What the file says, the family, and what the family makes of a system message "s" and a
# question "u".
FAMILIES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"tokens": IM},
        "chatml",
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n",
    ),
    ({"tokens": IM, "architecture": "qwen3moe"}, "qwen", "<|im_start|>system\ns<|im_end|>\n"),
    ({"tokens": IM, "pre": "smollm"}, "smollm", "<|im_start|>system\ns<|im_end|>\n"),
    ({"tokens": IM, "name": "SmolLM2 135M"}, "smollm", "<|im_start|>system\ns<|im_end|>\n"),
    ({"tokens": IM, "architecture": "olmo2"}, "olmo", "<s><|system|>\ns\n<|user|>\nu\n<|assist"),
    ({"tokens": IM, "architecture": "olmo2", "name": "Olmo-3-7B"}, "chatml", "<|im_start|>system"),
    (
        {"tokens": (*IM, "<|im_sep|>"), "architecture": "phi3"},
        "phi4",
        "<|im_start|>system<|im_sep|>s<|im_end|><|im_start|>user<|im_sep|>u<|im_end|><|im_start|>a",
    ),
    (
        {"tokens": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")},
        "llama3",
        "<s><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>user",
    ),
    (
        {"tokens": ("<|header_start|>", "<|header_end|>", "<|eot|>")},
        "llama4",
        "<s><|header_start|>system<|header_end|>\n\ns<|eot|>",
    ),
    (
        {"tokens": ("<start_of_turn>", "<end_of_turn>")},
        "gemma",
        "<s><start_of_turn>user\ns\n\nu<end_of_turn>\n<start_of_turn>model\n",
    ),
    ({"tokens": ("<|turn>", "<turn|>")}, "gemma4", "<s><|turn>system\ns<turn|>\n<|turn>user\nu<"),
    (
        {"tokens": ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")},
        "gpt-oss",
        "<|start|>system<|message|>Reasoning: medium\n\n# Valid channels: analysis, commentary, "
        "final. Channel must be included for every message.<|end|><|start|>developer<|message|>"
        "# Instructions\n\ns<|end|><|start|>user<|message|>u<|end|><|start|>assistant",
    ),
    (
        {"tokens": ("<|user|>", "<|assistant|>", "<|end|>")},
        "phi3",
        "<|system|>\ns<|end|>\n<|user|>\nu<|end|>\n<|assistant|>\n",
    ),
    (
        {"tokens": ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>")},
        "glm4",
        "[gMASK]<sop><|system|>\ns<|user|>\nu<|assistant|>\n",
    ),
    (
        {"tokens": ("<|start_of_role|>", "<|end_of_role|>")},
        "granite",
        "<|start_of_role|>system<|end_of_role|>s<|end_of_text|>\n<|start_of_role|>user",
    ),
    (
        {"tokens": ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")},
        "command-r",
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>s<|END_OF_TURN_TOKEN|>",
    ),
    (
        {"tokens": ("[|user|]", "[|assistant|]", "[|endofturn|]")},
        "exaone",
        "[|system|]s[|endofturn|]\n[|user|]u\n[|assistant|]",
    ),
    ({"tokens": ("<｜User｜>", "<｜Assistant｜>")}, "deepseek", "<s>s<｜User｜>u<｜Assistant｜>"),
    (
        {"tokens": ("<|EOT|>",), "name": "deepseek-coder-6.7b"},
        "deepseek-coder",
        "<s>s### Instruction:\nu\n### Response:\n",
    ),
    ({"architecture": "deepseek2"}, "deepseek2", "<s>s\n\nUser: u\n\nAssistant:"),
    (
        {"tokens": (*INST, "[SYSTEM_PROMPT]"), "pre": "tekken"},
        "mistral-v7-tekken",
        "<s>[SYSTEM_PROMPT]s[/SYSTEM_PROMPT][INST]u[/INST]",
    ),
    (
        {"tokens": (*INST, "[SYSTEM_PROMPT]")},
        "mistral-v7",
        "<s>[SYSTEM_PROMPT] s[/SYSTEM_PROMPT][INST] u[/INST]",
    ),
    ({"tokens": INST, "pre": "tekken"}, "mistral-v3-tekken", "<s>[INST]s\n\nu[/INST]"),
    ({"tokens": INST}, "mistral-v3", "<s>[INST] s\n\nu[/INST]"),
    ({"name": "Mixtral 8x7B Instruct"}, "mistral-v1", "<s>[INST] s\n\nu [/INST]"),
    ({"name": "Llama 2 7b chat"}, "llama2", "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\nu [/INST]"),
    ({"name": "TinyLlama 1.1B"}, "zephyr", "<|system|>\ns</s>\n<|user|>\nu</s>\n<|assistant|>\n"),
    ({"name": "Vicuna 13B"}, "vicuna", "<s>s USER: u ASSISTANT:"),
    ({"name": "Alpaca 7B"}, "alpaca", "<s>s\n\n### Instruction:\nu\n\n### Response:\n"),
    ({}, "plain", "<s>s\n\nUser: u\n\nAssistant:"),
]


def file(
    tokens: tuple[str, ...] = (), architecture: str = "", pre: str = "", name: str = ""
) -> dict[str, Any]:
    """Metadata of a file without a template."""
    base = byte_level()
    special = ["<s>", "</s>", *tokens]
    metadata = {
        P + "model": "gpt2",
        P + "tokens": [*base[P + "tokens"][:256], *(text.encode() for text in special)],
        P + "token_type": np.array([1] * 256 + [3] * len(special), np.int32),
        P + "merges": [],
        P + "bos_token_id": 256,
        P + "eos_token_id": 257,
    }
    texts = {"general.architecture": architecture, P + "pre": pre, "general.name": name}
    return {**metadata, **{key: value for key, value in texts.items() if value}}


def test_every_family_is_here() -> None:
    assert {family for _, family, _ in FAMILIES} == {row.name for row in FALLBACKS}


@pytest.mark.parametrize(("says", "family", "start"), FAMILIES)
def test_families(says: dict[str, Any], family: str, start: str) -> None:
    metadata = file(**says)
    model = Tokenizer.from_metadata(metadata)
    found = find_fallback(metadata, model.special_texts())
    assert (found.name if found else "plain") == family
    choice = family if family == "plain" else None
    template = ChatTemplate.from_metadata(metadata, model, choice)
    assert template.origin == f"fallback:{family}"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    prompt = template.prompt(messages)
    assert prompt.text.startswith(start)
    assert not prompt.repairs
    controls = {model.token_bytes(i).decode() for i in prompt.ids() if model.is_control(i)}
    assert controls <= {"<s>", "</s>", *says.get("tokens", ())}
    assert (
        says.get("tokens") is None
        or family == "olmo"
        or len(controls - {"<s>"}) >= 1
        or (family == "deepseek-coder")
    )


@pytest.mark.parametrize("family", sorted({row.name for row in FALLBACKS}))
def test_they_take_every_conversation(family: str) -> None:
    """No word is left out, whatever the roles, and the answer is the next thing."""
    metadata = file()
    template = ChatTemplate.from_metadata(metadata, Tokenizer.from_metadata(metadata), family)
    system = {"role": "system", "content": "SYSTEM words"}
    question = {"role": "user", "content": "USER words"}
    answer = {"role": "assistant", "content": "ANSWER words"}
    for messages in (
        [question],
        [question, answer, question],
        [system, question, answer, question],
        [question, answer, system, question],
        [system, system, question, question],
        [answer, question],
        [system, answer, question],
        [{**system, "role": "developer"}, question],
        [question, answer, {"role": "tool", "content": "TOOL words"}],
    ):
        prompt = template.prompt(messages)
        at = 0
        for message in messages:
            if message["role"] not in ("system", "developer"):
                at = prompt.text.index(message["content"], at) + len(message["content"])
            assert prompt.text.count(message["content"]) == messages.count(message)
        assert "leaves out" not in "".join(prompt.repairs)
        closed = template.prompt(messages, add_generation_prompt=False).text
        assert prompt.text.startswith(closed)


def test_smollm_has_a_system_message_of_its_own() -> None:
    metadata = file(tokens=IM, pre="smollm")
    template = ChatTemplate.from_metadata(metadata, Tokenizer.from_metadata(metadata))
    text = template.prompt([{"role": "user", "content": "u"}]).text
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, ")
