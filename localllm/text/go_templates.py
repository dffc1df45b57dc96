"""The Go templates of Ollama's registry. They are not run: each is told by its control tokens, and
the Jinja template of its family in `template_fallbacks` takes its place."""

from __future__ import annotations

import re

#: Families by the texts that must all occur, the most special first.
_SIGNS = (
    ("phi4", ("<|im_start|>", "<|im_sep|>")),
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("llama3", ("<|start_header_id|>", "<|eot_id|>")),
    ("llama4", ("<|header_start|>", "<|eot|>")),
    ("gemma4", ("<|turn>", "<turn|>")),
    ("gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("gpt-oss", ("<|start|>", "<|channel|>")),
    ("granite", ("<|start_of_role|>", "<|end_of_role|>")),
    ("command-r", ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    ("exaone", ("[|user|]", "[|assistant|]")),
    ("deepseek", ("<｜User｜>", "<｜Assistant｜>")),
    ("glm4", ("[gMASK]", "<sop>")),
    ("phi3", ("<|user|>", "<|end|>")),
    ("mistral-v7", ("[INST]", "[SYSTEM_PROMPT]")),
    ("llama2", ("[INST]", "<<SYS>>")),
    ("mistral-v3", ("[INST]", "[/INST]")),
    ("zephyr", ("<|user|>", "<|assistant|>", "</s>")),
    ("olmo", ("<|user|>", "<|assistant|>")),
    ("deepseek-coder", ("### Instruction:", "### Response:", "<|EOT|>")),
    ("alpaca", ("### Instruction:", "### Response:")),
    ("vicuna", ("USER:", "ASSISTANT:")),
)
_FIELD = re.compile(r"{{-?\s*(?:(?:if|range|with)\s+)?(?:\S+\s+)*?\$?\.[A-Z]\w*")


def is_go(template: str) -> bool:
    """Whether a template reads its values as Go does (`{{ .Prompt }}`)."""
    return _FIELD.search(template) is not None


def family_of(template: str) -> str | None:
    """The name of a row of FALLBACKS, None if no family's tokens are there."""
    for family, signs in _SIGNS:
        if all(sign in template for sign in signs):
            return family
    return None
