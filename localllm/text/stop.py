"""Stop strings in a stream: text is held back while it may still become one."""

from __future__ import annotations

from collections.abc import Sequence

from localllm.errors import ArgumentError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024


class StopStrings:
    """Cuts a stream at the first occurrence of any stop string, which is not shown.

    Raises ArgumentError for an empty one, too many, or too long ones.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if len(strings) > MAX_STOP_STRINGS:
            raise ArgumentError(
                f"{len(strings)} stop strings, at most {MAX_STOP_STRINGS} are allowed"
            )
        for s in strings:
            if not 1 <= len(s) <= MAX_STOP_CHARACTERS:
                raise ArgumentError(
                    f"a stop string has {len(s)} characters, allowed are 1 to {MAX_STOP_CHARACTERS}"
                )
        self._strings = tuple(strings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show now, and whether a stop string was met."""
        held = self._held + text
        found = [i for i in (held.find(s) for s in self._strings) if i >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def finish(self, text: str = "") -> str:
        """What was held back, once no more text comes; cut at a stop string that `text`
        completes."""
        shown, hit = self.feed(text)
        rest = "" if hit else self._held
        self._held = ""
        return shown + rest

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        longest = max((len(s) for s in self._strings), default=0)
        for n in range(min(longest - 1, len(text)), 0, -1):
            end = text[len(text) - n :]
            if any(s.startswith(end) for s in self._strings):
                return n
        return 0
