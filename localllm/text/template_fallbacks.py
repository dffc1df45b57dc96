"""Chat templates for files that carry none, one row for each family.

The formats are the publishers'. A row is found by the control tokens in the vocabulary, the
architecture, the pre-tokenizer and the model's name, or chosen by its name.
"""

from __future__ import annotations

import json
import re
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
    architectures: tuple[str, ...] = ()
    """Beginnings of `general.architecture` of which it must have one; empty: no matter."""
    pre_tokenizers: tuple[str, ...] = ()
    """Values of `tokenizer.ggml.pre` of which it must be one; empty: no matter."""
    model_names: tuple[str, ...] = ()
    """Parts of `general.name` of which one must occur (in any case); empty: no matter."""


_PLACE = re.compile(r"(\{\w*\})")


def _written(text: str, trim: bool = False) -> str:
    """A template that writes a text; {} in it is the message, {role} its role, {eos} and {bos} are
    the model's tokens, {system} is the text of the first message, if that is the system's."""
    places = {
        "{}": "message['content'] | trim" if trim else "message['content']",
        "{role}": "message['role']",
        "{system}": "system",
        "{bos}": "bos_token",
        "{eos}": "eos_token",
    }
    parts = [
        f"({places[part]})" if part in places else json.dumps(part, ensure_ascii=False)
        for part in _PLACE.split(text)
        if part
    ]
    return "{{ " + " + ".join(parts) + " }}" if parts else ""


def _turns(
    user: str,
    assistant: str,
    opening: str,
    *,
    system: str = "",
    first: str = "",
    start: str = "",
    default_system: str = "",
    trim: bool = False,
) -> str:
    """The template of a format.

    `user`, `assistant`, `system`: a message of that role, in the form of `_written`. `opening`:
    what begins an answer. `start`: what begins the prompt. A format without `system` has its text
    in the first of the user's messages, then written as `first`. `default_system`: the system
    message if there is none.
    """
    for_user = _written(user, trim)
    if system:
        before = ""
        if default_system:
            before = (
                "{% if messages[0]['role'] != 'system' %}"
                + _written(system.replace("{}", default_system).replace("{role}", "system"))
                + "{% endif %}"
            )
        messages, for_system = "messages", _written(system, trim)
    else:
        before = (
            "{% set system = '' %}{% set rest = messages %}"
            "{% if messages[0]['role'] == 'system' %}"
            "{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% endif %}"
        )
        messages = "rest"
        for_system = "{{ raise_exception('only the first message may be a system message') }}"
        for_user = (
            "{% if loop.first and system %}"
            + _written(first, trim)
            + "{% else %}"
            + for_user
            + "{% endif %}"
        )
    return (
        f"{_written(start)}{before}{{% for message in {messages} %}}"
        f"{{% if message['role'] == 'system' %}}{for_system}"
        f"{{% elif message['role'] == 'assistant' %}}{_written(assistant, trim)}"
        f"{{% else %}}{for_user}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{_written(opening)}{{% endif %}}"
    )


def _same_for_all(turn: str, opening: str, start: str = "", **more: str | bool) -> str:
    """The template of a format in which all roles are written in the same way."""
    trim, default = bool(more.get("trim")), str(more.get("default_system", ""))
    return _turns(turn, turn, opening, system=turn, start=start, trim=trim, default_system=default)


_IM = ("<|im_start|>", "<|im_end|>")
_INST = ("[INST]", "[/INST]")
_CHATML = _same_for_all("<|im_start|>{role}\n{}<|im_end|>\n", "<|im_start|>assistant\n")
_SMOLLM = _same_for_all(
    "<|im_start|>{role}\n{}<|im_end|>\n",
    "<|im_start|>assistant\n",
    default_system="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
)
_HARMONY = (
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort | default('medium')) + "
    "'\\n\\n# Valid channels: analysis, commentary, final. "
    "Channel must be included for every message.<|end|>' }}"
) + _turns(
    "<|start|>user<|message|>{}<|end|>",
    "<|start|>assistant<|channel|>final<|message|>{}<|end|>",
    "<|start|>assistant",
    system="<|start|>developer<|message|># Instructions\n\n{}<|end|>",
)
_LLAMA2 = _turns(
    "{bos}[INST] {} [/INST]",
    " {} {eos}",
    "",
    first="{bos}[INST] <<SYS>>\n{system}\n<</SYS>>\n\n{} [/INST]",
    trim=True,
)


def _mistral(question: str, answer: str) -> str:
    first = question.replace("{}", "{system}\n\n{}")
    return _turns(question, answer + "{eos}", "", first=first, start="{bos}")


def _mistral_v7(space: str) -> str:
    return _turns(
        f"[INST]{space}{{}}[/INST]",
        f"{space}{{}}{{eos}}",
        "",
        system=f"[SYSTEM_PROMPT]{space}{{}}[/SYSTEM_PROMPT]",
        start="{bos}",
    )


FALLBACKS = (
    Fallback(
        "phi4",
        _same_for_all(
            "<|im_start|>{role}<|im_sep|>{}<|im_end|>", "<|im_start|>assistant<|im_sep|>"
        ),
        tokens=(*_IM, "<|im_sep|>"),
        architectures=("phi",),
    ),
    Fallback("smollm", _SMOLLM, tokens=_IM, pre_tokenizers=("smollm",)),
    Fallback("smollm", _SMOLLM, tokens=_IM, model_names=("smollm",)),
    Fallback("qwen", _CHATML, tokens=_IM, architectures=("qwen",)),
    Fallback("chatml", _CHATML, tokens=_IM, model_names=("olmo-3", "olmo 3", "olmo3")),
    Fallback(
        "olmo",
        _turns(
            "<|user|>\n{}\n",
            "<|assistant|>\n{}{eos}\n",
            "<|assistant|>\n",
            system="<|system|>\n{}\n",
            start="{bos}",
        ),
        architectures=("olmo",),
    ),
    Fallback("chatml", _CHATML, tokens=_IM),
    Fallback(
        "llama3",
        _same_for_all(
            "<|start_header_id|>{role}<|end_header_id|>\n\n{}<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            start="{bos}",
            trim=True,
        ),
        tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    Fallback(
        "llama4",
        _same_for_all(
            "<|header_start|>{role}<|header_end|>\n\n{}<|eot|>",
            "<|header_start|>assistant<|header_end|>\n\n",
            start="{bos}",
            trim=True,
        ),
        tokens=("<|header_start|>", "<|header_end|>", "<|eot|>"),
    ),
    Fallback(
        "gemma",
        _turns(
            "<start_of_turn>user\n{}<end_of_turn>\n",
            "<start_of_turn>model\n{}<end_of_turn>\n",
            "<start_of_turn>model\n",
            first="<start_of_turn>user\n{system}\n\n{}<end_of_turn>\n",
            start="{bos}",
            trim=True,
        ),
        tokens=("<start_of_turn>", "<end_of_turn>"),
    ),
    Fallback(
        "gemma4",
        _turns(
            "<|turn>user\n{}<turn|>\n",
            "<|turn>model\n{}<turn|>\n",
            "<|turn>model\n",
            system="<|turn>system\n{}<turn|>\n",
            start="{bos}",
            trim=True,
        ),
        tokens=("<|turn>", "<turn|>"),
    ),
    Fallback("gpt-oss", _HARMONY, tokens=("<|start|>", "<|channel|>", "<|message|>", "<|end|>")),
    Fallback(
        "phi3",
        _same_for_all("<|{role}|>\n{}<|end|>\n", "<|assistant|>\n"),
        tokens=("<|user|>", "<|assistant|>", "<|end|>"),
    ),
    Fallback(
        "glm4",
        _same_for_all("<|{role}|>\n{}", "<|assistant|>\n", start="[gMASK]<sop>"),
        tokens=("[gMASK]", "<sop>", "<|user|>", "<|assistant|>"),
    ),
    Fallback(
        "granite",
        _same_for_all(
            "<|start_of_role|>{role}<|end_of_role|>{}<|end_of_text|>\n",
            "<|start_of_role|>assistant<|end_of_role|>",
        ),
        tokens=("<|start_of_role|>", "<|end_of_role|>"),
    ),
    Fallback(
        "command-r",
        _turns(
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            system="<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
            start="{bos}",
            trim=True,
        ),
        tokens=("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    Fallback(
        "exaone",
        _turns(
            "[|user|]{}\n",
            "[|assistant|]{}[|endofturn|]\n",
            "[|assistant|]",
            system="[|system|]{}[|endofturn|]\n",
            trim=True,
        ),
        tokens=("[|user|]", "[|assistant|]", "[|endofturn|]"),
    ),
    Fallback(
        "deepseek",  # V2.5, V3, R1
        _turns(
            "<｜User｜>{}",
            "<｜Assistant｜>{}<｜end▁of▁sentence｜>",
            "<｜Assistant｜>",
            first="{system}<｜User｜>{}",
            start="{bos}",
        ),
        tokens=("<｜User｜>", "<｜Assistant｜>"),
    ),
    Fallback(
        "deepseek-coder",
        _turns(
            "### Instruction:\n{}\n",
            "### Response:\n{}\n<|EOT|>\n",
            "### Response:\n",
            system="{}",
            start="{bos}",
        ),
        tokens=("<|EOT|>",),
        model_names=("deepseek",),
    ),
    Fallback(
        "deepseek2",
        _turns(
            "User: {}\n\n",
            "Assistant: {}<｜end▁of▁sentence｜>",
            "Assistant:",
            system="{}\n\n",
            start="{bos}",
        ),
        architectures=("deepseek",),
    ),
    Fallback(
        "mistral-v7-tekken",
        _mistral_v7(""),
        tokens=(*_INST, "[SYSTEM_PROMPT]"),
        pre_tokenizers=("tekken",),
    ),
    Fallback("mistral-v7", _mistral_v7(" "), tokens=(*_INST, "[SYSTEM_PROMPT]")),
    Fallback(
        "mistral-v3-tekken",
        _mistral("[INST]{}[/INST]", "{}"),
        tokens=_INST,
        pre_tokenizers=("tekken",),
    ),
    Fallback("mistral-v3", _mistral("[INST] {}[/INST]", " {}"), tokens=_INST),
    Fallback(
        "mistral-v1", _mistral("[INST] {} [/INST]", " {}"), model_names=("mistral", "mixtral")
    ),
    Fallback("llama2", _LLAMA2, model_names=("llama-2", "llama 2", "llama2", "codellama")),
    Fallback(
        "zephyr",
        _same_for_all("<|{role}|>\n{}{eos}\n", "<|assistant|>\n"),
        model_names=("zephyr", "tinyllama"),
    ),
    Fallback(
        "vicuna",
        _turns("USER: {} ", "ASSISTANT: {}{eos}", "ASSISTANT:", system="{} ", start="{bos}"),
        model_names=("vicuna", "wizardlm", "llava"),
    ),
    Fallback(
        "alpaca",
        _turns(
            "### Instruction:\n{}\n\n",
            "### Response:\n{}{eos}\n\n",
            "### Response:\n",
            system="{}\n\n",
            start="{bos}",
        ),
        model_names=("alpaca",),
    ),
    Fallback(
        "plain",  # for models of no format, by choice only
        _turns("User: {}\n\n", "Assistant: {}\n\n", "Assistant:", system="{}\n\n", start="{bos}"),
    ),
)


def find_fallback(metadata: Metadata, token_texts: Collection[str]) -> Fallback | None:
    """The format of a model without a template, None if nothing tells."""
    name = (read_text(metadata, "general.name", "") or "").lower()
    architecture = read_text(metadata, "general.architecture", "") or ""
    pre = read_text(metadata, "tokenizer.ggml.pre", "") or ""
    for row in FALLBACKS:
        signs = (row.tokens, row.architectures, row.pre_tokenizers, row.model_names)
        if (
            any(signs)
            and all(text in token_texts for text in row.tokens)
            and (not row.architectures or architecture.startswith(row.architectures))
            and (not row.pre_tokenizers or pre in row.pre_tokenizers)
            and (not row.model_names or any(part in name for part in row.model_names))
        ):
            return row
    return None
