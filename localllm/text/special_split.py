"""Cutting a text at its special tokens, before anything else looks at it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

_SPACES = " \t\n\v\f\r"

Allow = Callable[[int, int, int], bool]
"""Whether the token `id` may be taken at text[start:end]: called as (id, start, end)."""


class SpecialSplitter:
    """Finds special tokens in texts: the leftmost one first, at one place the longest one."""

    def __init__(
        self,
        ids: Mapping[str, int],
        strips_left: frozenset[int] = frozenset(),
        strips_right: frozenset[int] = frozenset(),
    ) -> None:
        """`ids`: the special tokens' texts, none empty. `strips_left` and `strips_right`: tokens
        that swallow the spaces before and after them."""
        self._ids = dict(ids)
        self._strips_left = strips_left
        self._strips_right = strips_right
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(ns, reverse=True) for first, ns in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def pieces(self, text: str, allow: Allow | None = None) -> Iterator[str | int]:
        """The parts of `text` in order: str between special tokens (never empty), int for one.

        A token that `allow` refuses is left in the text around it.
        """
        start = at = 0
        while self._first is not None:
            found = self._first.search(text, at)
            if found is None:
                break
            at = found.start()
            match = self._longest(text, at, allow)
            if match is None:
                at += 1
                continue
            token_id, end = match
            before = text[start:at]
            if token_id in self._strips_left:
                before = before.rstrip(_SPACES)
            if before:
                yield before
            yield token_id
            if token_id in self._strips_right:
                while end < len(text) and text[end] in _SPACES:
                    end += 1
            start = at = end
        if start < len(text):
            yield text[start:]

    def _longest(self, text: str, at: int, allow: Allow | None) -> tuple[int, int] | None:
        """The id and end of the longest allowed token at `at`."""
        for n in self._lengths[text[at]]:
            token_id = self._ids.get(text[at : at + n])
            if token_id is not None and (allow is None or allow(token_id, at, at + n)):
                return token_id, at + n
        return None
