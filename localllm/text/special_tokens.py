"""Which tokens are control tokens and which end a generation, by their texts.

Converters leave gaps in `tokenizer.ggml.*`, so texts that are known to be control tokens are
treated as such whatever the file says. The lists are those of llama.cpp's src/llama-vocab.cpp;
where it takes the first match of a hash table, the order here decides.
"""

from __future__ import annotations

import re

END_OF_TURN = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)
END_OF_MESSAGE = ("<|eom_id|>",)

FILL_IN_THE_MIDDLE = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
STOPPING_FILL_IN = ("fim_pad", "fim_rep", "fim_sep")
"""The fill-in-the-middle tokens that end a generation."""

END_OF_GENERATION = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
    *("<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    *("<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>"),
    *("<｜end▁of▁sentence｜>", "[e~["),
)

KNOWN = frozenset(
    {*END_OF_TURN, *END_OF_MESSAGE, *END_OF_GENERATION}.union(*FILL_IN_THE_MIDDLE.values())
)
"""All of the texts above."""

_MARKUP = re.compile(r"<[|｜].*>|<.*[|｜]>|<(start|end)_of_\w+>|\[/?[A-Z_]+\]|</?s>", re.DOTALL)


def looks_like_control(text: str) -> bool:
    """Whether a token that the file calls user-defined has the form of a control token, so that
    it must not be made from a user's words."""
    return _MARKUP.fullmatch(text) is not None
