"""Reasoning in the templates in the wild: the family, the switch, whether the prompt opens a block;
and what a template writes for a reasoned answer comes apart as it was put together."""

from __future__ import annotations

import re

import pytest
from test_chat_templates import TEMPLATES, _tokenizer

from localllm.text.answer_stream import AnswerStream
from localllm.text.chat_template import ChatTemplate
from localllm.text.thinking_switch import thinking_options

QUESTION = [{"role": "user", "content": "What is it?"}]
ANSWER = {
    "role": "assistant",
    "content": "It is seven.",
    "reasoning_content": "Three and four.\nSo seven.",
}

# The family, the option that switches thinking (None: there is no switch), whether a prompt with
# thinking on ends inside a block of reasoning (off, none does), the templates.
REASONING: list[tuple[str, str | None, bool, tuple[str, ...]]] = [
    ("apertus", "enable_thinking", False, ("Apertus-8B-Instruct",)),
    ("apriel", None, True, ("Apriel-1.6-15b-Thinker-fixed",)),
    ("command-a", "reasoning", True, ("Cohere2MoE",)),
    ("command-a", "enable_thinking", False, ("CohereForAI-c4ai-command-r7b-12-2024-tool_use",)),
    (
        "gemma4",
        "enable_thinking",
        False,
        ("google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"),
    ),
    ("granite", "thinking", False, ("ibm-granite-granite-3.3-2B-Instruct",)),
    ("harmony", None, False, ("openai-gpt-oss-120b",)),
    ("hunyuan-3", "reasoning_effort", True, ("tencent-Hy3",)),
    ("kimi-k3", "thinking", True, ("Kimi-K3",)),
    ("magistral", None, False, ("mistralai-Ministral-3-14B-Reasoning-2512",)),
    ("minimax-m3", "thinking_mode", True, ("MiniMax-M3",)),
    ("muse", None, False, ("muse-glimmer",)),
    ("seed", "thinking_budget", False, ("ByteDance-Seed-OSS",)),
    ("solar-open", "reasoning_effort", False, ("upstage-Solar-Open-100B",)),
    (
        "think",
        "enable_thinking",
        True,
        (
            "Bielik-11B-v3.0-Instruct",
            "GLM-4.7-Flash",
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "Qwen-QwQ-32B",
            "Qwen3.5-4B",
            "Reka-Edge",
            "Spark2.5",
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            "deepseek-ai-DeepSeek-V3.1",
            "deepseek-ai-DeepSeek-V3.2",
            "deepseek-ai-DeepSeek-V4",
            "deepseek-ai-DeepSeek-V4-Flash-0731",
            "inclusionai-ling-3.0-flash",
            "llama-cpp-rwkv-world",
            "openbmb-MiniCPM5-1B",
            "poolside-Laguna-S-2.1",
            "poolside-Laguna-XS-2.1",
            "poolside-Laguna-XS.2",
        ),
    ),
    ("think", "enable_thinking", False, ("GLM-4.6", "HuggingFaceTB-SmolLM3-3B", "Qwen-Qwen3-0.6B")),
    ("think", None, False, ("Kimi-K2-Thinking", "LFM2.5-8B-A1B", "LFM2.5-Instruct")),
    (
        "think",
        None,
        True,
        (
            "MiniMax-M2",
            "StepFun3.5-Flash",
            "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
            "llama-cpp-deepseek-r1",
        ),
    ),
    ("think", "system_text", True, ("NVIDIA-Nemotron-Nano-v2",)),
    ("thinking", None, False, ("unsloth-Apriel-1.5",)),
]
ROWS = {name: row[:3] for row in REASONING for name in row[3]}

WRITES_REASONING = (
    *("Bielik-11B-v3.0-Instruct", "ByteDance-Seed-OSS", "Cohere2MoE", "GLM-4.6", "GLM-4.7-Flash"),
    *("Kimi-K3", "LFM2.5-8B-A1B", "MiniMax-M2", "MiniMax-M3", "muse-glimmer", "Qwen-Qwen3-0.6B"),
    *("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen3.5-4B", "Reka-Edge", "Spark2.5"),
    *("StepFun3.5-Flash", "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4"),
    *("deepseek-ai-DeepSeek-V4-Flash-0731", "inclusionai-ling-3.0-flash", "openai-gpt-oss-120b"),
    *("openbmb-MiniCPM5-1B", "poolside-Laguna-S-2.1", "poolside-Laguna-XS-2.1"),
    *("poolside-Laguna-XS.2", "tencent-Hy3"),
)
"""Templates that write the reasoning of the last answer, behind what a prompt would end with."""


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_families_and_switches(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], _tokenizer(TEMPLATES[name]))
    on, off = thinking_options(template, True), thinking_options(template, False)
    if name not in ROWS:
        assert (template.reasoning, on, off) == (None, None, None)
        return
    family, option, opens = ROWS[name]
    assert template.reasoning is not None and template.reasoning.name == family
    assert on is not None and list(on) == ([option] if option else [])
    assert template.prompt(QUESTION, **on).opens_reasoning == opens
    assert (off is None) == (option is None)
    if off is not None:
        assert list(off) == [option]
        assert not template.prompt(QUESTION, **off).opens_reasoning


@pytest.mark.parametrize("name", WRITES_REASONING)
def test_a_templates_own_answers(name: str) -> None:
    tokenizer = _tokenizer(TEMPLATES[name])
    template = ChatTemplate(TEMPLATES[name], tokenizer)
    options = thinking_options(template, True) or {}
    prompt = template.prompt(QUESTION, **options)
    whole = template.prompt([*QUESTION, ANSWER], add_generation_prompt=False, **options).text
    assert whole.startswith(prompt.text)
    answer = whole[len(prompt.text) :]
    words = answer.rindex(ANSWER["content"]) + len(ANSWER["content"])
    rest = answer[words:]
    # An end of turn that is no control token of this vocabulary is the engine's to look for.
    end = re.match(r"\s*(<(seed:eos|sep|/assistant)>)", rest)
    ids = tokenizer.encode(
        answer[:words] + ("" if end else rest), add_special=False, parse_special=True
    )
    stream = AnswerStream(tokenizer, reasoning=template.reasoning, opened=prompt.opens_reasoning)
    deltas = [*(stream.feed(i) for i in ids), stream.finish()]
    assert "".join(d.reasoning for d in deltas) == ANSWER["reasoning_content"]
    assert "".join(d.text for d in deltas).rstrip() == ANSWER["content"]
