"""How to ask a model to think before it answers, or not to: one row for each kind of switch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from localllm.errors import ChatTemplateError
from localllm.text.chat_template import SYSTEM_TEXT, ChatTemplate

Options = dict[str, Any]
"""Options of `ChatTemplate.prompt`."""
THINK_LEVELS = ("minimal", "low", "medium", "high", "max")


@dataclass(frozen=True)
class Switch:
    """An option of `ChatTemplate.prompt` and its values for thinking and not thinking."""

    option: str
    on: bool | int | str
    off: bool | int | str


SWITCHES = (
    Switch("enable_thinking", True, False),  # Qwen 3, GLM, SmolLM3, Gemma 4, ...
    Switch("thinking", True, False),  # DeepSeek V3.1, Granite 3, Kimi K3
    Switch("thinking_mode", "enabled", "disabled"),  # MiniMax M3
    Switch("reasoning", True, False),  # Command A
    Switch("reasoning_effort", "high", "none"),  # Mistral Small 4
    Switch("reasoning_effort", "high", "no_think"),  # Hunyuan 3
    Switch("reasoning_effort", "high", "minimal"),  # Solar Open
    Switch("thinking_budget", -1, 0),  # Seed-OSS
    Switch(SYSTEM_TEXT, "/think", "/no_think"),  # Nemotron Nano 2
)
LEVEL_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""Variables of templates that take one of `THINK_LEVELS`: gpt-oss, Kimi K3, Muse."""

_QUESTION = [{"role": "user", "content": "What is the time?"}]


def thinking_options(template: ChatTemplate, think: bool | str | None) -> Options | None:
    """The options of `ChatTemplate.prompt` with which a model thinks (True, or one of
    `THINK_LEVELS`), does not (False), or does as it pleases (None: no options).

    None if the model cannot be told so: it always thinks, never does, or knows no such level.
    """
    if think is None:
        return {}
    if isinstance(think, str):
        return _level(template, think, thinking_options(template, True) or {})
    for switch in SWITCHES:
        if _works(template, switch):
            return {switch.option: switch.on if think else switch.off}
    return {} if think and template.reasoning is not None else None


def switched(template: ChatTemplate, think: bool | str | None) -> tuple[Options, tuple[str, ...]]:
    """The options of `thinking_options`; where the model cannot be told so none, and a note."""
    options = thinking_options(template, think)
    if options is not None:
        return options, ()
    wish = "leave out its reasoning"
    if think:
        wish = "reason" if think is True else f"reason at the level {think}"
    return {}, (f"this model cannot be told to {wish}",)


def _works(template: ChatTemplate, switch: Switch) -> bool:
    """Whether the template writes different prompts for the two values."""
    if isinstance(switch.off, str) and not re.search(f"['\"]{switch.off}['\"]", template.source):
        return False
    if switch.option != SYSTEM_TEXT and not _mentions(template, switch.option):
        return False
    on = _written(template, {switch.option: switch.on})
    off = _written(template, {switch.option: switch.off})
    if switch.option == SYSTEM_TEXT and on is not None and off is not None:
        return str(switch.off) not in off
    return on is not None and off is not None and on != off


def _level(template: ChatTemplate, level: str, on: Options) -> Options | None:
    """The options for a level, if the template takes it and it makes a difference."""
    if level not in THINK_LEVELS:
        return None
    for variable in LEVEL_VARIABLES:
        if _mentions(template, variable):
            written = _written(template, {**on, variable: level})
            others = {_written(template, {**on, variable: other}) for other in THINK_LEVELS}
            if written is not None and others - {written, None}:
                return {**on, variable: level}
    return None


def _mentions(template: ChatTemplate, variable: str) -> bool:
    return re.search(rf"\b{variable}\b", template.source) is not None


def _written(template: ChatTemplate, options: Options) -> str | None:
    try:
        return template.prompt(_QUESTION, **options).text
    except ChatTemplateError:
        return None
