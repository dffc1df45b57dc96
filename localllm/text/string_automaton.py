"""Finding several strings at once in a text that comes in pieces: one step for each character.

The automaton of A. V. Aho and M. J. Corasick, "Efficient string matching: an aid to bibliographic
search", Communications of the ACM 18 (1975).
"""

from __future__ import annotations

from collections.abc import Sequence

ROOT = 0


class StringAutomaton:
    """A state stands for the longest end of the text so far that begins one of the strings.

    `ROOT` is the state before the first character.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: dict[tuple[int, str], int] = {}
        self._fail = [ROOT]
        self.depth = [0]
        """[state] the length of that end of the text."""
        self.match = [0]
        """[state] the length of the longest string that ends here, 0 if none does."""
        for string in strings:
            self._add(string)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character. Over a whole text it looks at most two transitions a
        character up: a failure link goes up by at least what earlier steps went down."""
        while True:
            following = self._next.get((state, character))
            if following is not None:
                return following
            if state == ROOT:
                return ROOT
            state = self._fail[state]

    def _add(self, string: str) -> None:
        state = ROOT
        for character in string:
            following = self._next.get((state, character))
            if following is None:
                following = len(self.depth)
                self._next[state, character] = following
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
                self._fail.append(ROOT)
            state = following
        self.match[state] = self.depth[state]

    def _link(self) -> None:
        """Sets the failure links, by rising depth, and hands matches down along them."""
        edges = sorted(self._next.items(), key=lambda edge: self.depth[edge[1]])
        for (state, character), following in edges:
            fail = ROOT if state == ROOT else self.step(self._fail[state], character)
            self._fail[following] = fail
            self.match[following] = max(self.match[following], self.match[fail])
