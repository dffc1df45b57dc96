"""What a chat template wrote: a prompt as text, as token ids, and where it may be cut."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from localllm.text.chat_messages import ROLES
from localllm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrustedText:
    """A rendered text and what in it is the template's own."""

    text: str
    trusted: bytes
    """[len(text)] 1 where the template's own text stands, 0 where the messages' does."""
    template_only: frozenset[int]
    """Ids of the tokens that only the template may make."""

    def allows(self, token_id: int, start: int, end: int) -> bool:
        """Whether the special token may be taken at text[start:end]."""
        if token_id not in self.template_only:
            return True
        trusted = self.trusted
        first = trusted.find(0, start, end)
        if first < 0:
            return True
        # A role's name between two of the template's own texts, as in '<|' + role + '|>'.
        last = trusted.rfind(0, start, end)
        if first == start or last == end - 1 or trusted.find(1, first, last) >= 0:
            return False
        return self.text[first : last + 1].lower() in ROLES


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    source: TrustedText
    tokenizer: Tokenizer
    repairs: tuple[str, ...] = ()
    """What was changed so that the template takes the messages, a line each; usually nothing."""
    opens_reasoning: bool = False
    """Whether the prompt ends inside a block of reasoning, so that the answer begins with it."""
    goes_on: bool = False
    """Whether it ends inside the text of an answer, or of its reasoning, that is gone on with."""

    @property
    def text(self) -> str:
        """The prompt as the template wrote it."""
        return self.source.text

    def ids(self, start: int = 0, end: int | None = None) -> list[int]:
        """The token ids of text[start:end]. Control tokens come only from the template's own text.

        From 0 they begin with the beginning-of-sequence token, if the model asks for one and the
        template did not write it. Where `special_at(start)` holds they end `ids()`.
        """
        if start == 0 and end is None:
            return list(self._all_ids)
        return self._encoded(start, end)

    def special_at(self, i: int) -> bool:
        """Whether a token that only the template may make begins at character i: text before and
        after it may be encoded apart."""
        return i in self.control_tokens

    @functools.cached_property
    def control_tokens(self) -> dict[int, int]:
        """The tokens that only the template may make: the character where each begins, to its id.
        Two prompts with the same text and the same of these have the same ids."""
        found = self.tokenizer.special_starts(self.text, self.source.allows)
        return {i: token for i, token in found.items() if token in self.source.template_only}

    @functools.cached_property
    def _all_ids(self) -> tuple[int, ...]:
        return tuple(self._encoded(0, None))

    def _encoded(self, start: int, end: int | None) -> list[int]:
        def allow(token_id: int, begin: int, end: int) -> bool:
            return self.source.allows(token_id, start + begin, start + end)

        text = self.text[start:end]
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True, allow=allow)
        bos = self.tokenizer.bos_id
        if start == 0 and self.tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids
