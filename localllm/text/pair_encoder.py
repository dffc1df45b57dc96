"""Byte-pair encoding: how words become ids, by whatever merges.

The table of the `tokenizers` library takes most of a second to build for a large vocabulary, more
than a start may cost. So the first texts are merged here, one look-up a pair, with the same ids;
the table is built when they have become many.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from localllm.text.encoders import garbage_collector_paused, guarded, ids_of

FIRST_CHARS = 32768
"""Characters that are merged without the table: some 0.1 s of work."""

Pairs = list[tuple[str, str]]


class Merges(Protocol):
    """Which two neighbours become one token, and in what order."""

    def rank(self, left: str, right: str) -> Any:
        """Where a merge comes, the least first; None if there is no such merge. Ranks of two
        merges are never equal."""

    def pairs(self) -> Pairs:
        """All merges, best first; they may name texts that are no tokens."""


@dataclass(frozen=True)
class PairRules:
    """What surrounds the merges. byte_fallback: a character without a token becomes its bytes'
    `<0xXX>`; unknown: the token of other such characters (None: they vanish); ignore_merges: a
    word that is a token is never cut."""

    ignore_merges: bool = False
    byte_fallback: bool = False
    unknown: str | None = None


class PairEncoder:
    """Texts to ids. names: what `matchable` gives; pre_tokenizer: one of the `tokenizers` library
    that cuts a text into words, None for a text that is one word. Threads may share it."""

    def __init__(
        self, names: dict[str, int], merges: Merges, rules: PairRules, pre_tokenizer: Any = None
    ) -> None:
        self._names = names
        self._merges: Merges | None = merges  # None once they are in the table
        self._rules = rules
        self._pre_tokenizer = pre_tokenizer
        self._n_chars = 0
        self._table: Any = None
        self._building = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """The ids of a text without special tokens."""
        merges = self._merges
        self._n_chars += len(text)
        if merges is None or self._n_chars > FIRST_CHARS:
            return ids_of(self._full_table(), text)
        return [i for word in self._words(text) for i in self._ids(word, merges)]

    def _words(self, text: str) -> list[str]:
        if self._pre_tokenizer is None:
            return [text]
        cut = guarded("cannot cut a text", lambda: self._pre_tokenizer.pre_tokenize_str(text))
        return [word for word, _ in cut]

    def _ids(self, word: str, merges: Merges) -> Iterator[int]:
        if self._rules.ignore_merges and word in self._names:
            return iter((self._names[word],))
        return map(self._names.__getitem__, merged(self._symbols(word), merges))

    def _symbols(self, word: str) -> list[str]:
        """The tokens of single characters. An unknown one is written when the next character that
        is known, or unknown too, comes: bytes overtake it, as they do in the library."""
        names, unknown = self._names, self._rules.unknown
        found: list[str] = []
        pending = False
        for char in word:
            if char in names:
                if pending and unknown is not None:
                    found.append(unknown)
                pending = False
                found.append(char)
                continue
            if self._rules.byte_fallback:
                fallback = [f"<0x{byte:02X}>" for byte in char.encode()]
                if all(name in names for name in fallback):
                    found += fallback
                    continue
            if unknown is not None:
                if pending:
                    found.append(unknown)
                pending = True
        if pending and unknown is not None:
            found.append(unknown)
        return found

    def _full_table(self) -> Any:
        with self._building:
            if self._merges is not None:
                with garbage_collector_paused():
                    self._table = self._build(self._merges.pairs())
                self._merges = None
            return self._table

    def _build(self, merges: Pairs) -> Any:
        from tokenizers import Tokenizer, models

        names, rules = self._names, self._rules
        options: dict[str, Any] = {
            "byte_fallback": rules.byte_fallback,
            "fuse_unk": False,
            "ignore_merges": rules.ignore_merges,
        }
        if rules.unknown is not None:
            options["unk_token"] = rules.unknown
        try:
            model = models.BPE(names, merges, **options)
        except Exception:
            # One merge that names no token is enough for this; such merges cannot happen.
            kept = usable(merges, names)
            model = guarded(
                "the vocabulary and merges do not fit", lambda: models.BPE(names, kept, **options)
            )
        tokenizer = Tokenizer(model)
        if self._pre_tokenizer is not None:
            tokenizer.pre_tokenizer = self._pre_tokenizer
        return tokenizer


def usable(pairs: Pairs, names: dict[str, int]) -> Pairs:
    """The merges whose parts and result are all tokens."""
    return [
        (left, right)
        for left, right in pairs
        if left in names and right in names and left + right in names
    ]


def merged(symbols: list[str], merges: Merges) -> list[str]:
    """What is left after all merges, always the best one first, the leftmost of equals. Changes
    `symbols`."""
    n = len(symbols)
    after = list(range(1, n + 1))  # the symbol behind each one, n at the end; -1: merged away
    before = list(range(-1, n - 1))
    queue: list[tuple[Any, int, int, int]] = []  # rank, the two symbols, what stood behind them

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < n:
            rank = merges.rank(symbols[left], symbols[right])
            if rank is not None:
                heapq.heappush(queue, (rank, left, right, after[right]))

    for at in range(n - 1):
        offer(at, at + 1)
    while queue:
        _, left, right, end = heapq.heappop(queue)
        if after[left] != right or after[right] != end:
            continue  # one of the two has changed since
        symbols[left] += symbols[right]
        after[left], after[right] = end, -1
        if end < n:
            before[end] = left
        offer(before[left], left)
        offer(left, end)
    return [symbols[at] for at in range(n) if after[at] >= 0]
