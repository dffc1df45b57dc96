"""Log probabilities in the shape of /v1/completions: lists side by side, and where in the text each
token begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localllm.engine.answer_text import told
from localllm.engine.exchange import Chunk, TokenLogprobs
from localllm.engine.sampling import Sampled
from localllm.text.tokenizer import Tokenizer

_LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(frozen=True)
class Echoed:
    """A prompt that its answer begins with. pieces: what each of its tokens adds to the text."""

    text: str
    ids: tuple[int, ...] = ()
    pieces: tuple[bytes, ...] = ()


def echoed(prompt: str | Sequence[int], ids: Sequence[int], tokenizer: Tokenizer) -> Echoed:
    """ids: the tokens of the prompt. The token that begins a text is no part of it, unless the
    prompt spells it."""
    text = prompt if isinstance(prompt, str) else tokenizer.decode(ids, skip_special=False)
    first = tokenizer.token_bytes(ids[0]).decode("utf-8", "replace")
    if isinstance(prompt, str) and ids[0] == tokenizer.bos_id and not prompt.startswith(first):
        return Echoed(text, tuple(ids), (b"", *tokenizer.pieces(ids[1:], skip_special=False)))
    return Echoed(text, tuple(ids), tuple(tokenizer.pieces(ids, skip_special=False)))


def finite(value: float) -> float:
    return max(value, _LOWEST_LOGPROB)


class TextLogprobs:
    """Of one choice, in the order of its text. n_top: of so many likeliest tokens. whole: the token
    that ends the answer has an entry, too, though it is no part of the text: who sums up a prompt's
    log probabilities counts from the end."""

    def __init__(self, tokenizer: Tokenizer, n_top: int, *, whole: bool) -> None:
        self._tokenizer, self._n_top, self._whole = tokenizer, n_top, whole
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of_prompt(self, prompt: Echoed, rows: Sequence[Sampled]) -> dict[str, Any]:
        """The first token has no log probability: nothing is in front of it."""
        first = self._tokenizer.token_bytes(prompt.ids[0]).decode("utf-8", "replace")
        rows = [row._replace(top=row.top[: self._n_top]) for row in rows]
        entries = [TokenLogprobs(prompt.ids[0], first, 0.0, ()), *told(self._tokenizer, rows)]
        lists = self._lists(entries, prompt.pieces)
        lists["token_logprobs"][0] = None
        if self._n_top:
            lists["top_logprobs"][0] = None
        return lists

    def of_answer(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        entries, pieces = [], []
        for chunk in chunks:
            for entry in chunk.logprobs:
                ends = entry.token in self._tokenizer.stop_ids
                if self._whole or not ends:
                    entries.append(entry)
                    pieces.append(b"" if ends else self._tokenizer.token_bytes(entry.token))
        return self._lists(entries, pieces)

    def _lists(self, entries: Sequence[TokenLogprobs], pieces: Sequence[bytes]) -> dict[str, Any]:
        offsets = []
        for piece in pieces:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(piece))
        tops = [{text: finite(value) for text, value in reversed(each.top)} for each in entries]
        return {
            "tokens": [each.text for each in entries],
            "token_logprobs": [finite(each.value) for each in entries],
            "top_logprobs": tops if self._n_top else None,
            "text_offset": offsets,
        }


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The lists of a prompt and of its answer."""
    return {name: None if first[name] is None else first[name] + second[name] for name in first}
