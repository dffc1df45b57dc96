"""Which sequences run how many tokens in the next step. Pure policy: no clock, nothing native.

Sequences are served by rank. Those that decode go first, one token each; prompts share what is left
of the step. A sequence is admitted when its prompt fits beside what the running ones still need. If
blocks run out later, the youngest one gives its blocks up and computes them again, so the oldest
one can always go on, and every sequence that fits alone ends.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from localllm.engine.blocks import BLOCK_TOKENS, ROLLBACK_TOKENS, BlockPool, SequenceState
from localllm.errors import ArgumentError

#: A request is served as if it had come this many requests earlier per level of priority: those of
#: low priority wait, but not forever.
AHEAD = 64
MAX_LEVELS = 16
#: A prompt gets at least this much of a step, as long as there is that much.
LEAST_PROMPT_TOKENS = 32

#: (arrival made earlier by the priority, arrival, number of the answer): the least is served first.
Rank = tuple[int, int, int]


def rank(arrival: int, priority: int, index: int = 0) -> Rank:
    level = max(-MAX_LEVELS, min(priority, MAX_LEVELS))
    return arrival - AHEAD * level, arrival, index


@dataclass(eq=False)
class Entry:
    """A sequence. tokens: its prompt and what was sampled. holds_last: all but the last token are
    computed, and that one waits until it is False."""

    rank: Rank
    tokens: list[int]
    sequence: SequenceState
    holds_last: bool = False
    n_preempted: int = 0

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.holds_last - self.sequence.n_computed


E = TypeVar("E", bound=Entry)


class Scheduler(Generic[E]):
    """`windows` [n_groups] of the pool's groups, 0: full attention. max_step_tokens: the most that
    one step takes. `begin` gives an entry that holds nothing what is known of its tokens."""

    def __init__(
        self,
        pool: BlockPool,
        windows: Sequence[int],
        *,
        max_sequences: int,
        max_step_tokens: int,
        begin: Callable[[E], None],
    ) -> None:
        self._pool, self._windows, self._begin = pool, tuple(windows), begin
        self.max_sequences, self._max_step_tokens = max_sequences, max_step_tokens
        self.waiting: list[E] = []  # by rank
        self.running: list[E] = []  # by rank
        self.n_preemptions = 0

    def check_fits(self, n_tokens: int) -> None:
        """Raises `ArgumentError` if a sequence of n_tokens could not even run alone."""
        for group, needed in enumerate(self._needed(n_tokens)):
            if needed > self._pool.capacity[group]:
                raise ArgumentError(
                    f"{n_tokens} tokens need {needed} blocks of the cache, and it has "
                    f"{self._pool.capacity[group]}"
                )

    def add(self, entry: E) -> None:
        bisect.insort(self.waiting, entry, key=_by_rank)

    def remove(self, entry: E) -> None:
        """Takes a sequence out and frees what it holds."""
        for entries in (self.waiting, self.running):
            if entry in entries:
                entries.remove(entry)
        _free(entry)

    def plan(self, budget: int) -> list[tuple[E, int]]:
        """The next step: how many tokens of which sequences, at most `budget` in all. Room for them
        is made. Empty only if nothing has a token to compute."""
        budget = min(budget, self._max_step_tokens)
        planned: dict[E, int] = {}
        for entry in list(self.running):
            if sum(planned.values()) < budget and entry.n_pending == 1:
                self._take(entry, 1, planned)
        left = budget - sum(planned.values())
        if left:
            self._admit(planned)
            self._take_prompts(budget, planned)
        return sorted(planned.items(), key=lambda item: item[0].rank)

    def _admit(self, planned: dict[E, int]) -> None:
        while self.waiting and len(self.running) < self.max_sequences:
            entry = self.waiting[0]
            held = entry.sequence.table.holds_blocks()
            if not held:
                self._begin(entry)
            if self.running and not self._fits(entry):
                if not held:
                    _free(entry)
                return
            self.waiting.pop(0)
            bisect.insort(self.running, entry, key=_by_rank)

    def _fits(self, entry: E) -> bool:
        """Whether the tokens of an entry fit beside those of the running ones and a block more for
        each of these."""
        wanted = [0] * len(self._windows)
        for each in [*self.running, entry]:
            entries = each.sequence.table.entries
            for group, needed in enumerate(self._needed(len(each.tokens))):
                held = sum(block >= 0 for block in entries[group])
                wanted[group] += max(0, needed - held)
        return all(n <= self._pool.n_available(group) for group, n in enumerate(wanted))

    def _needed(self, n_tokens: int) -> list[int]:
        """Blocks of a sequence of n_tokens while it runs, and one for a copy of a shared one."""
        full = -(-n_tokens // BLOCK_TOKENS) + 1
        return [
            min(full, -(-(window + self._max_step_tokens + ROLLBACK_TOKENS) // BLOCK_TOKENS) + 2)
            if window
            else full
            for window in self._windows
        ]

    def _take_prompts(self, budget: int, planned: dict[E, int]) -> None:
        """Equal shares, and what is left of them to the oldest."""
        prompts = [e for e in self.running if e not in planned and e.n_pending > 0]
        if not prompts:
            return
        left = budget - sum(planned.values())
        share = max(LEAST_PROMPT_TOKENS, left // len(prompts))
        shares = {}
        for entry in prompts:
            shares[entry] = min(entry.n_pending, share, left)
            left -= shares[entry]
        for entry in prompts:
            more = min(entry.n_pending - shares[entry], left)
            shares[entry] += more
            left -= more
        for entry, n in shares.items():
            if n and entry in self.running:
                self._take(entry, n, planned)

    def _take(self, entry: E, n: int, planned: dict[E, int]) -> None:
        """Plans n tokens of an entry, if there is room or younger ones can make some."""
        if entry not in self.running:
            return
        planned[entry] = n
        while not self._has_room(planned):
            victim = self._youngest(entry)
            if victim is None:
                del planned[entry]
                return
            planned.pop(victim, None)
            self._preempt(victim)

    def _has_room(self, planned: dict[E, int]) -> bool:
        wanted = [0] * len(self._windows)
        for entry, n in planned.items():
            sequence = entry.sequence
            for group, missing in enumerate(sequence.table.missing(sequence.n_computed, n)):
                wanted[group] += missing
        return all(n <= self._pool.n_available(group) for group, n in enumerate(wanted))

    def _youngest(self, entry: E) -> E | None:
        """Who gives blocks up for an entry: those that wait, then those that run."""
        for entries in (self.waiting, self.running):
            for other in reversed(entries):
                older = entries is self.running and other.rank < entry.rank
                if other is not entry and not older and other.sequence.table.holds_blocks():
                    return other
        return None

    def _preempt(self, entry: E) -> None:
        _free(entry)
        if entry in self.running:
            self.running.remove(entry)
            self.add(entry)
        entry.n_preempted += 1
        self.n_preemptions += 1


def _by_rank(entry: Entry) -> Rank:
    return entry.rank


def _free(entry: Entry) -> None:
    entry.sequence.table.clear()
    entry.sequence.n_computed = 0
