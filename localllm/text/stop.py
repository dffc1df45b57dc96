"""Stop strings in a stream: text is held back while it may still become one."""

from __future__ import annotations

from collections.abc import Sequence

from localllm.errors import ArgumentError
from localllm.text.string_automaton import ROOT, StringAutomaton

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024


class StopStrings:
    """Cuts a stream where the first stop string begins; neither it nor what follows is shown.

    Wherever the stream is split, the cut is the one of the whole text: of all occurrences the one
    that begins first. Where one string lies inside another (`b` in `abc`), that takes the end of
    the longer one, or the character that breaks it. After a cut the next text is another stream.

    Raises ArgumentError for an empty string, too many, or too long ones.
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
        self.hit = False
        """Whether a stop string was met."""
        self.n_cut = 0
        """Of what was fed until it was met: the characters that are not shown."""
        self._any = bool(strings)
        self._automaton = StringAutomaton(strings)
        self._restart()

    def _restart(self) -> None:
        self._state = ROOT
        self._held = ""
        self._cut: int | None = None  # in the held text: where the first known match begins

    @property
    def n_held(self) -> int:
        """Characters that were fed and may still be cut."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show now, and whether a stop string was met."""
        if not self._any:
            return text, False
        automaton, state, cut = self._automaton, self._state, self._cut
        seen = len(self._held)
        held = self._held + text
        for character in text:
            state = automaton.step(state, character)
            seen += 1
            if automaton.match[state]:
                begin = seen - automaton.match[state]
                cut = begin if cut is None else min(cut, begin)
            if cut is not None and seen - automaton.depth[state] >= cut:
                self._restart()
                self.hit, self.n_cut = True, len(held) - cut
                return held[:cut], True
        # What the state stands for may become a match, and one that begins before the known one.
        safe = seen - automaton.depth[state]
        self._state, self._held = state, held[safe:]
        self._cut = None if cut is None else cut - safe
        return held[:safe], False

    def finish(self, text: str = "") -> str:
        """What was held back, once no more text comes; cut at a stop string that `text`
        completes."""
        shown, hit = self.feed(text)
        rest = "" if hit else self._held[: self._cut]
        if self._cut is not None:
            self.n_cut = len(self._held) - self._cut
        self.hit = hit or self._cut is not None
        self._restart()
        return shown + rest
