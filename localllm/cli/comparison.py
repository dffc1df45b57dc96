"""A new answer against a recorded one, while it comes."""

from __future__ import annotations

from collections.abc import Sequence

from localllm.store.answers import Answer

_EXCERPT = 24  # characters of each text around the first difference


class Comparison:
    """Feed it the chunks of the new answer. `difference` says where it leaves the record, None as
    long as it does not."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.difference: str | None = None
        self.n_identical = 0  # tokens
        self.text = ""
        self.reasoning = ""
        self.finish_reason: str | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the new answer was stopped before it could end or differ."""
        return self.finish_reason == "cancelled" and self.difference is None

    @property
    def verdict(self) -> str:
        """The result in one line."""
        recorded = len(self.answer.token_ids)
        if self.difference is not None:
            return f"different: {self.difference}"
        if self.interrupted:
            return f"stopped: {self.n_identical} of {recorded} tokens were given, all identical"
        cut = ", up to where it was cancelled" if self.answer.finish_reason == "cancelled" else ""
        return f"identical: {recorded} {'token' if recorded == 1 else 'tokens'}{cut}"

    def feed(
        self, token_ids: Sequence[int], text: str, reasoning: str, finish_reason: str | None
    ) -> None:
        """The next chunk. Nothing more is compared after a difference."""
        self.text += text
        self.reasoning += reasoning
        self.finish_reason = finish_reason
        if self.difference is None:
            self.difference = self._tokens(token_ids) or self._end() or self._texts()

    def _tokens(self, token_ids: Sequence[int]) -> str | None:
        recorded = self.answer.token_ids
        for token in token_ids:
            n = self.n_identical
            if n == len(recorded):
                return f"the record ends after {n} tokens, this answer goes on with token {token}"
            if token != recorded[n]:
                return (
                    f"token {n + 1} of {len(recorded)} is {token}, on record is {recorded[n]}"
                    + self._after()
                )
            self.n_identical += 1
        return None

    def _after(self) -> str:
        shown = self.answer.text[: len(self.text)][-_EXCERPT:]
        return f"; the text before it ends with {shown!a}" if shown else ""

    def _texts(self) -> str | None:
        for name, new, recorded in (
            ("text", self.text, self.answer.text),
            ("reasoning", self.reasoning, self.answer.reasoning),
        ):
            whole = self.finish_reason is not None and not self.interrupted
            if new == recorded if whole else recorded.startswith(new):
                continue
            at = next(
                (i for i, (a, b) in enumerate(zip(new, recorded, strict=False)) if a != b),
                min(len(new), len(recorded)),
            )
            return (
                f"the {name} differs from character {at + 1} on: "
                f"{new[at : at + _EXCERPT]!a}, on record is {recorded[at : at + _EXCERPT]!a}"
            )
        return None

    def _end(self) -> str | None:
        if self.finish_reason is None or self.interrupted:
            return None
        recorded = self.answer
        if self.n_identical < len(recorded.token_ids):
            return (
                f"this answer ends after {self.n_identical} tokens ({self.finish_reason}), "
                f"on record are {len(recorded.token_ids)}"
            )
        if recorded.finish_reason not in ("cancelled", self.finish_reason):
            return f"it was ended by {self.finish_reason}, on record is {recorded.finish_reason}"
        return None
