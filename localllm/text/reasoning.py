"""How models mark the reasoning before an answer: one row for each family.

Texts are those of the publishers' chat templates and model cards. `answer_stream` takes answers
apart by a row, `thinking_switch` knows how to ask for reasoning or against it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Headers:
    """For formats that begin each block with a header, as in `<|start|>assistant to=user`."""

    starts: tuple[str, ...]
    """Texts that begin or go on with a header, wherever they stand."""
    end: str
    """The text that ends a header."""
    reasoning_word: str
    """What the header of a block of reasoning holds."""
    first: tuple[str, ...] = ()
    """Texts that go on with the header in which the prompt ended."""


@dataclass(frozen=True)
class ReasoningFormat:
    """A family's marks. A mark may be one token, several, or plain text."""

    name: str
    openings: tuple[str, ...]
    """Texts that begin a block of reasoning."""
    closings: tuple[str, ...]
    """Texts that end one."""
    signs: tuple[str, ...] | None = ()
    """Texts that all stand in the source of the family's templates; () means openings[0] and
    closings[0], None that the vocabulary alone tells."""
    tokens: tuple[str, ...] | None = ()
    """Tokens that all stand in the vocabulary, for files without a telling template; () means
    openings[0] and closings[0], None that the vocabulary does not tell."""
    answer_openings: tuple[str, ...] = ()
    """Texts that may begin the answer and are not part of it."""
    answer_closings: tuple[str, ...] = ()
    """Texts that may end it."""
    anywhere: bool = False
    """Whether reasoning may also follow after parts of the answer."""
    headers: Headers | None = None


_THINK = (("<think>",), ("</think>",))

REASONING_FORMATS = (
    ReasoningFormat(
        "ernie",
        *_THINK,
        signs=None,
        tokens=("<think>", "</think>", "<response>", "</response>"),
        answer_openings=("<response>",),
        answer_closings=("</response>",),
    ),
    ReasoningFormat(
        "harmony",  # gpt-oss
        ("<|channel|>analysis<|message|>",),
        ("<|end|>",),
        signs=("<|channel|>", "<|message|>"),
        tokens=("<|channel|>", "<|message|>", "<|end|>"),
        headers=Headers(("<|start|>", "<|channel|>"), "<|message|>", "analysis", (" to=",)),
    ),
    ReasoningFormat(
        "muse",
        ("<|start|>assistant to=self<|message|>",),
        ("<|eom|>",),
        signs=("to=self<|message|>",),
        tokens=None,
        headers=Headers(("<|start|>",), "<|message|>", "to=self", (" to=",)),
    ),
    ReasoningFormat(
        "gemma4",
        ("<|channel>thought",),
        ("<channel|>",),
        signs=("<|channel>thought", "<channel|>"),
        tokens=("<|channel>", "<channel|>"),
        anywhere=True,
    ),
    ReasoningFormat(
        "kimi-k3",
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        signs=("<|open|>", "<|close|>", "<|sep|>"),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        answer_openings=("<|open|>response<|sep|>",),
        answer_closings=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ReasoningFormat(
        "solar-open",
        ("<|think|>",),
        ("<|end|>",),
        signs=("<|begin|>assistant<|think|>",),
        tokens=("<|begin|>", "<|think|>", "<|content|>"),
        answer_openings=("<|begin|>assistant", "<|content|>"),
    ),
    ReasoningFormat(
        "hunyuan-3",
        ("<think:opensource>",),
        ("</think:opensource>",),
        signs=("<think{}>", "opensource"),
    ),
    ReasoningFormat("seed", ("<seed:think>",), ("</seed:think>",)),
    ReasoningFormat("minimax-m3", ("<mm:think>",), ("</mm:think>",)),
    ReasoningFormat(
        "command-a",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        answer_openings=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        answer_closings=("<|END_RESPONSE|>", "<|END_TEXT|>"),
    ),
    ReasoningFormat("magistral", ("[THINK]",), ("[/THINK]",)),
    ReasoningFormat("kimi-vl", ("◁think▷",), ("◁/think▷",), signs=("◁/think▷",)),
    ReasoningFormat(
        "apriel",
        ("Here are my reasoning steps:",),
        ("[BEGIN FINAL RESPONSE]",),
        answer_closings=("[END FINAL RESPONSE]",),
        tokens=None,
    ),
    ReasoningFormat("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",), anywhere=True),
    ReasoningFormat(
        "open-thinker",
        ("<|begin_of_thought|>",),
        ("<|end_of_thought|>",),
        answer_openings=("<|begin_of_solution|>",),
        answer_closings=("<|end_of_solution|>",),
    ),
    # EXAONE Deep
    ReasoningFormat("thought", ("<thought>",), ("</thought>",), signs=("</thought>",)),
    ReasoningFormat("thinking", ("<thinking>",), ("</thinking>",), signs=("</thinking>",)),
    ReasoningFormat("reasoning", ("<reasoning>",), ("</reasoning>",), signs=("</reasoning>",)),
    ReasoningFormat(
        "granite",  # 3.3
        *_THINK,
        signs=("<think></think>", "<response></response>"),
        tokens=None,
        answer_openings=("<response>",),
        answer_closings=("</response>",),
    ),
    ReasoningFormat(
        "granite-3.2",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        signs=("Here is my thought process:",),
        tokens=None,
    ),
    ReasoningFormat(
        "hunyuan",  # A13B; K2-Think
        *_THINK,
        signs=("</think>", "<answer>"),
        tokens=None,
        answer_openings=("<answer>",),
        answer_closings=("</answer>",),
    ),
    # DeepSeek R1 and V3, Qwen 3, QwQ, SmolLM3, GLM, MiniMax, Kimi K2, Nemotron, EXAONE 4, ...
    ReasoningFormat("think", *_THINK, signs=("</think>",)),
)


def detect_reasoning(source: str, token_texts: Collection[str]) -> ReasoningFormat | None:
    """The format of a model: by the source of its chat template, else by the control and
    user-defined tokens of its vocabulary. None if nothing tells of one."""
    for row in REASONING_FORMATS:
        if row.signs is None:
            if _has_tokens(row, token_texts):
                return row
        elif all(sign in source for sign in row.signs or (row.openings[0], row.closings[0])):
            return row
    return next((row for row in REASONING_FORMATS if _has_tokens(row, token_texts)), None)


def _has_tokens(row: ReasoningFormat, token_texts: Collection[str]) -> bool:
    tokens = (row.openings[0], row.closings[0]) if row.tokens == () else row.tokens
    return bool(tokens) and all(token in token_texts for token in tokens or ())


def opens_reasoning(row: ReasoningFormat, prompt: str) -> bool:
    """Whether a prompt ends with a mark that begins reasoning, but for spaces."""
    return prompt.rstrip().endswith(row.openings)
