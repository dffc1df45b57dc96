"""Chat templates for files that carry none, chosen by the control tokens in the vocabulary."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from localllm.text.metadata import Metadata, read_text


@dataclass(frozen=True)
class Fallback:
    """A format and the signs by which its models are known."""

    name: str
    source: str
    tokens: tuple[str, ...] = ()
    """Texts of tokens that must all be in the vocabulary."""
    model_names: tuple[str, ...] = ()
    """Parts of `general.name` of which one must occur (in any case); empty: no matter."""


def _with_system_in_first_user(body: str) -> str:
    """A template for models that know no system role: its text goes before the first question."""
    return (
        "{% set system = '' %}{% set rest = messages %}"
        "{% if messages and messages[0]['role'] == 'system' %}"
        "{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% endif %}" + body
    )


_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_GEMMA = _with_system_in_first_user(
    "{{ bos_token }}{% for message in rest %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' }}"
    "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_PHI3 = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
_COMMAND_R = (
    "{{ bos_token }}{% for message in messages %}"
    "{% set role = 'CHATBOT' if message['role'] == 'assistant' else message['role'] | upper %}"
    "{{ '<|START_OF_TURN_TOKEN|>' }}"
    "{% if role == 'CHATBOT' %}{{ '<|CHATBOT_TOKEN|>' }}"
    "{% elif role == 'SYSTEM' %}{{ '<|SYSTEM_TOKEN|>' }}{% else %}{{ '<|USER_TOKEN|>' }}{% endif %}"
    "{{ message['content'] | trim + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
_DEEPSEEK = _with_system_in_first_user(
    "{{ bos_token + system }}{% for message in rest %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}"
    "{% else %}{{ '<｜User｜>' + message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
_LLAMA2 = _with_system_in_first_user(
    "{% for message in rest %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% else %}{{ bos_token + '[INST] ' }}"
    "{% if loop.first and system %}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}"
    "{{ message['content'] | trim + ' [/INST]' }}{% endif %}{% endfor %}"
)
_MISTRAL = _with_system_in_first_user(
    "{{ bos_token }}{% for message in rest %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] | trim + eos_token }}{% else %}{{ '[INST] ' }}"
    "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ message['content'] | trim + ' [/INST]' }}{% endif %}{% endfor %}"
)

FALLBACKS = (
    Fallback("chatml", _CHATML, tokens=("<|im_start|>", "<|im_end|>")),
    Fallback("llama3", _LLAMA3, tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    Fallback("gemma", _GEMMA, tokens=("<start_of_turn>", "<end_of_turn>")),
    Fallback("phi3", _PHI3, tokens=("<|user|>", "<|assistant|>", "<|end|>")),
    Fallback("command-r", _COMMAND_R, tokens=("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    Fallback("deepseek", _DEEPSEEK, tokens=("<｜User｜>", "<｜Assistant｜>")),
    Fallback("mistral", _MISTRAL, tokens=("[INST]", "[/INST]")),
    Fallback("mistral", _MISTRAL, model_names=("mistral", "mixtral")),
    Fallback("llama2", _LLAMA2, model_names=("llama-2", "llama 2", "llama2")),
)


def find_fallback(metadata: Metadata, token_texts: Collection[str]) -> Fallback | None:
    """The format of a model without a template, None if nothing tells."""
    name = (read_text(metadata, "general.name", "") or "").lower()
    for fallback in FALLBACKS:
        if all(text in token_texts for text in fallback.tokens) and (
            not fallback.model_names or any(part in name for part in fallback.model_names)
        ):
            return fallback
    return None
