"""Which sequences run how many tokens in the next step. Pure policy: no clock, nothing native.

Sequences are served by rank. Those that decode go first, one token each; what is left of the step
goes to prompts. Short prompts come one after the other: sharing would delay the first of them and
help none. One with less left goes before an older one, but few do. They may make a step longer than
long ones may: who decodes waits for them once, and the sooner they decode themselves, the more run
in each step. Long prompts share. A sequence is admitted when its prompt fits beside what the
running ones still need. If blocks run out later, the youngest one gives its blocks up and gets them
back later, or computes them again, so the oldest one can always go on, and every sequence that fits
alone ends.
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
#: A long prompt gets at least this much of a step, as long as there is that much.
LEAST_PROMPT_TOKENS = 32
#: A prompt is short if no more tokens of it than these are to be computed when it is admitted.
SHORT_PROMPT_TOKENS = 512
#: A short prompt goes before an older one if it is shorter by so many tokens for each request that
#: came between: at most SHORT_PROMPT_TOKENS / TOKENS_PER_RANK later ones go before one.
TOKENS_PER_RANK = 64
#: Long prompts that the budget has room for get this much of a step, whatever short ones take, or
#: one in so many of the tokens that it has for prompts, if that is more.
LEAST_LONG_TOKENS, LONG_SHARE = 8, 8

#: (arrival made earlier by the priority, arrival, number of the answer): the least is served first.
Rank = tuple[int, int, int]


def rank(arrival: int, priority: int, index: int = 0) -> Rank:
    level = max(-MAX_LEVELS, min(priority, MAX_LEVELS))
    return arrival - AHEAD * level, arrival, index


@dataclass(eq=False)
class Entry:
    """A sequence. tokens: its prompt and what was sampled. holds_last: all but the last token are
    computed, and that one waits until it is False. is_held: it has blocks, and waits for what comes
    into them from elsewhere. is_short: when it was admitted, little of it was to be computed.
    is_dear: its tokens cost more than others, so it is never short."""

    rank: Rank
    tokens: Sequence[int]
    sequence: SequenceState
    holds_last: bool = False
    is_held: bool = False
    is_short: bool = False
    is_dear: bool = False
    n_preempted: int = 0

    @property
    def n_pending(self) -> int:
        return 0 if self.is_held else len(self.tokens) - self.holds_last - self.sequence.n_computed


E = TypeVar("E", bound=Entry)


class _Plan(Generic[E]):
    """A step in the making. left: tokens that it has room for; wanted [n_groups]: blocks that it
    will allocate."""

    def __init__(self, left: int, n_groups: int) -> None:
        self.left = left
        self.wanted = [0] * n_groups
        self.tokens: dict[E, int] = {}
        self._blocks: dict[E, list[int]] = {}

    def put(self, entry: E, n_tokens: int, blocks: list[int]) -> None:
        self.tokens[entry], self._blocks[entry] = n_tokens, blocks
        self.left -= n_tokens
        if any(blocks):
            self.wanted = [a + b for a, b in zip(self.wanted, blocks, strict=True)]

    def drop(self, entry: E) -> None:
        if entry not in self.tokens:
            return
        self.left += self.tokens.pop(entry)
        blocks = self._blocks.pop(entry)
        self.wanted = [a - b for a, b in zip(self.wanted, blocks, strict=True)]


class Scheduler(Generic[E]):
    """`windows` [n_groups] of the pool's groups, 0: full attention. max_step_tokens: the most that
    one step takes. `begin` gives an entry that holds nothing what the pool knows of its tokens,
    `restore` what is known elsewhere, once there is room; `park` is called before an entry gives
    its blocks up."""

    def __init__(
        self,
        pool: BlockPool,
        windows: Sequence[int],
        *,
        max_sequences: int,
        max_step_tokens: int,
        begin: Callable[[E], None],
        restore: Callable[[E], None] = lambda entry: None,
        park: Callable[[E], None] = lambda entry: None,
    ) -> None:
        self._pool, self._windows = pool, tuple(windows)
        self._begin, self._restore, self._park = begin, restore, park
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

    def plan(self, budget: int, short_budget: int = 0) -> list[tuple[E, int]]:
        """The next step: how many tokens of which sequences, at most `budget` in all, or
        `short_budget`, if that is more and there are short prompts. Room for them is made. Empty
        only if nothing has a token to compute."""
        most = min(max(budget, short_budget), self._max_step_tokens)
        plan: _Plan[E] = _Plan(most, len(self._windows))
        for entry in list(self.running):
            if plan.left and entry.n_pending == 1:
                self._take(entry, 1, plan)
        if plan.left:
            self._admit()
            self._take_prompts(plan, budget)
        return sorted(plan.tokens.items(), key=lambda item: item[0].rank)

    def _admit(self) -> None:
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
            entry.is_short = not entry.is_dear and entry.n_pending <= SHORT_PROMPT_TOKENS
            bisect.insort(self.running, entry, key=_by_rank)
            if not held:
                self._restore(entry)

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

    def _take_prompts(self, plan: _Plan[E], budget: int) -> None:
        """Short prompts first; long ones take what they leave of the budget. They get nothing if
        those that decode use it up."""
        prompts = [e for e in self.running if e not in plan.tokens and e.n_pending > 0]
        long = [e for e in prompts if not e.is_short]
        rests = budget <= sum(plan.tokens.values())
        least = min(max(LEAST_LONG_TOKENS, plan.left // LONG_SHARE), plan.left)
        kept = 0 if rests or not long else least
        self._in_turn([e for e in prompts if e.is_short], plan.left - kept, plan)
        left = budget - sum(plan.tokens.values())
        self._share(long, min(max(left, kept), plan.left), plan)

    def _in_turn(self, prompts: list[E], left: int, plan: _Plan[E]) -> None:
        """One after the other, as much as it can take."""
        for entry in sorted(prompts, key=_by_length):
            n = min(entry.n_pending, left)
            if n:
                self._take(entry, n, plan)
            left -= n

    def _share(self, prompts: list[E], left: int, plan: _Plan[E]) -> None:
        """Equal shares, and what is left of them to the oldest."""
        if not prompts:
            return
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
            if n:
                self._take(entry, n, plan)

    def _take(self, entry: E, n: int, plan: _Plan[E]) -> None:
        """Plans n tokens of an entry, if there is room or younger ones can make some."""
        if entry not in self.running:  # it gave its blocks up in this plan
            return
        sequence = entry.sequence
        while True:
            blocks = sequence.table.missing(sequence.n_computed, n)
            if not any(blocks) or self._has(plan.wanted, blocks):
                plan.put(entry, n, blocks)
                return
            victim = self._youngest(entry)
            if victim is None:
                return
            plan.drop(victim)
            self._preempt(victim)

    def _has(self, wanted: list[int], more: list[int]) -> bool:
        groups = enumerate(zip(wanted, more, strict=True))
        return all(a + b <= self._pool.n_available(group) for group, (a, b) in groups)

    def _youngest(self, entry: E) -> E | None:
        """Who gives blocks up for an entry: those that wait, then those that run."""
        for entries in (self.waiting, self.running):
            for other in reversed(entries):
                older = entries is self.running and other.rank < entry.rank
                if other is not entry and not older and other.sequence.table.holds_blocks():
                    return other
        return None

    def _preempt(self, entry: E) -> None:
        self._park(entry)
        entry.is_held = False
        _free(entry)
        if entry in self.running:
            self.running.remove(entry)
            self.add(entry)
        entry.n_preempted += 1
        self.n_preemptions += 1


def _by_rank(entry: Entry) -> Rank:
    return entry.rank


def _by_length(entry: Entry) -> tuple[int, Rank]:
    return entry.n_pending + TOKENS_PER_RANK * entry.rank[0], entry.rank


def _free(entry: Entry) -> None:
    entry.sequence.table.clear()
    entry.sequence.n_computed = 0
