"""The log probabilities of a prompt's own tokens, which come as it is computed."""

from __future__ import annotations

from collections.abc import Sequence

from localllm.engine.sampling import Sampled


class PromptRows:
    """Of one prompt: a row for each of its tokens but the first, with the n_top likeliest tokens in
    its place. A row needs the logits behind the token in front of it, so as much of the prompt as
    lacks rows is computed, whatever the prefix cache knows."""

    def __init__(self, prompt: Sequence[int], n_top: int) -> None:
        self._next = list(prompt[1:])
        self.n_top = n_top
        self._rows: list[Sampled] = []

    @property
    def is_complete(self) -> bool:
        return len(self._rows) == len(self._next)

    @property
    def n_reusable(self) -> int:
        """Tokens of the prompt that need not be computed for rows."""
        return len(self._rows)

    def wanted(self, first: int, n: int) -> list[int]:
        """What comes behind each of the tokens [first, first + n); -1 behind the prompt."""
        found = self._next[first : first + n]
        return found + [-1] * (n - len(found))

    def take(self, first: int, rows: Sequence[Sampled]) -> None:
        """What was wanted from `first` on. A prompt that lost its blocks may give some again."""
        new = rows[len(self._rows) - first :]
        self._rows += [row._replace(top=row.top[: self.n_top]) for row in new]

    def rows(self) -> tuple[Sampled, ...]:
        return tuple(self._rows)
