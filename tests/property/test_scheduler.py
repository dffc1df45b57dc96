"""The scheduler over random requests: never over the step or the pool, and every one ends."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine import scheduler
from localllm.engine.blocks import BlockPool, BlockTable, SequenceState
from localllm.engine.prefix_cache import PrefixCache
from localllm.engine.scheduler import AHEAD, Entry, Scheduler, rank
from localllm.errors import ArgumentError

MAX_STEP = 48


class World:
    """A scheduler, a pool with a cache, and what a step does to them."""

    def __init__(self, n_blocks: int, max_sequences: int, window: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.windows = (0, window) if window else (0,)
        # Behind a window there is room for one sequence that runs, and a little.
        self.pool = BlockPool([n_blocks, 12][: len(self.windows)])
        self.cache = PrefixCache(self.pool, self.windows, b"")
        self.scheduler: Scheduler[Entry] = Scheduler(
            self.pool,
            self.windows,
            max_sequences=max_sequences,
            max_step_tokens=MAX_STEP,
            begin=self.begin,
        )
        self.left: dict[Entry, int] = {}  # tokens that it will still sample
        self.n_steps = 0

    def begin(self, entry: Entry) -> None:
        n, table, _ = self.cache.find(entry.tokens)
        entry.sequence.table, entry.sequence.n_computed = table, n

    def request(self, n_prompt: int, n_answer: int, arrival: int, priority: int) -> Entry:
        self.scheduler.check_fits(n_prompt + n_answer)
        tokens = [self.random.randint(0, 1)] * (n_prompt // 2) + [2] * (n_prompt - n_prompt // 2)
        sequence = SequenceState(BlockTable(self.pool, self.windows))
        entry = Entry(rank(arrival, priority), tokens, sequence)
        self.scheduler.add(entry)
        self.left[entry] = n_answer
        return entry

    def step(self, budget: int, short_budget: int = 0) -> list[Entry]:
        """Returns who was planned."""
        plan = self.scheduler.plan(budget, short_budget)
        self.n_steps += 1
        assert plan or not self.left
        assert sum(n for _, n in plan) <= min(max(budget, short_budget), MAX_STEP)
        assert len(self.scheduler.running) <= self.scheduler.max_sequences
        for entry, n in plan:
            assert entry in self.scheduler.running and 1 <= n <= entry.n_pending
            sequence = entry.sequence
            sequence.table.drop_left_behind(sequence.n_computed)
            sequence.table.prepare(sequence.n_computed, n, lambda *_: None)  # there is room
            sequence.n_computed += n
        for entry, _ in plan:
            sequence, tokens = entry.sequence, entry.tokens
            self.cache.store(tokens[: sequence.n_computed], sequence.table, self.cache.start())
            sequence.table.drop_left_behind(sequence.n_computed)
            if sequence.n_computed == len(tokens):
                tokens.append(self.random.randint(0, 1))
                self.left[entry] -= 1
                if not self.left[entry]:
                    self.end(entry)
        return [entry for entry, _ in plan]

    def end(self, entry: Entry) -> None:
        self.scheduler.remove(entry)
        del self.left[entry]


requests = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 60), st.integers(-2, 2), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    asked=requests,
    n_blocks=st.integers(10, 30),
    max_sequences=st.integers(1, 5),
    window=st.sampled_from([0, 20, 64]),
    budget=st.integers(8, 64),
    short_budget=st.integers(0, 64),
    short=st.sampled_from([0, 40, 512]),
    seed=st.integers(0, 9),
)
def test_every_request_ends(
    asked: list[tuple[int, int, int, int]],
    n_blocks: int,
    max_sequences: int,
    window: int,
    budget: int,
    short_budget: int,
    short: int,
    seed: int,
) -> None:
    world = World(n_blocks, max_sequences, window, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "SHORT_PROMPT_TOKENS", short)
        _all_end(world, asked, budget, short_budget)


def _all_end(
    world: World, asked: list[tuple[int, int, int, int]], budget: int, short_budget: int
) -> None:
    cancelled = []
    for arrival, (n_prompt, n_answer, priority, fate) in enumerate(asked):
        entry = world.request(n_prompt, n_answer, arrival, priority)
        if fate == 0:
            cancelled.append(entry)
        if fate < 5:
            world.step(budget, short_budget)
    for entry in cancelled:
        if entry in world.left:
            world.end(entry)
    while world.left:
        world.step(budget, short_budget)
        assert world.n_steps < 4000
    for group, capacity in enumerate(world.pool.capacity):
        assert world.pool.n_available(group) == capacity


def test_the_oldest_is_never_preempted() -> None:
    world = World(9, 4, 0, 0)
    entries = [world.request(60, 100, arrival, 0) for arrival in range(4)]
    while entries[0] in world.left:
        world.step(32)
    assert entries[0].n_preempted == 0 and world.scheduler.n_preemptions > 0
    while world.left:
        world.step(32)


def test_nobody_is_preempted_for_a_younger_one() -> None:
    world = World(9, 2, 0, 0)
    entries = [world.request(60, 90, arrival, 0) for arrival in range(2)]
    for i, entry in enumerate(entries):
        entry.tokens[:] = [10 + i] * 60
    while world.left:
        world.step(32)
    assert [entry.n_preempted for entry in entries] == [0, 0]  # the younger one waits


def test_those_who_wait_give_their_blocks_up_first() -> None:
    world = World(6, 1, 0, 0)
    running = world.request(60, 100, 1, 0)
    world.step(MAX_STEP)
    forked = world.request(60, 5, 0, 0)
    forked.tokens[:] = [10] * 60
    forked.sequence.table.prepare(0, 60, lambda *_: None)
    forked.sequence.n_computed = 59
    while running in world.left:
        world.step(MAX_STEP)
    assert (running.n_preempted, forked.n_preempted) == (0, 1)
    while world.left:
        world.step(MAX_STEP)


def test_decoding_goes_first_and_short_prompts_take_turns() -> None:
    world = World(100, 6, 0, 0)
    first = world.request(20, 60, 0, 0)
    assert world.step(MAX_STEP) == [first]
    second, third = world.request(60, 1, 1, 0), world.request(18, 5, 2, 0)
    assert dict(world.scheduler.plan(48)) == {first: 1, second: 47}
    before = world.request(30, 1, 3, 1)
    assert dict(world.scheduler.plan(48)) == {first: 1, before: 30, second: 17}
    world.end(before)
    world.step(48)
    assert dict(world.scheduler.plan(48)) == {first: 1, second: 13, third: 18}


def test_long_prompts_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SHORT_PROMPT_TOKENS", 10)
    world = World(100, 5, 0, 0)
    first = world.request(20, 60, 0, 0)
    assert world.step(MAX_STEP) == [first]
    long, longer = world.request(18, 5, 1, 0), world.request(150, 1, 2, 0)
    assert dict(world.scheduler.plan(48)) == {first: 1, long: 18, longer: 29}
    short = world.request(10, 5, 3, 0)
    assert dict(world.scheduler.plan(48)) == {first: 1, long: 18, longer: 19, short: 10}
    monkeypatch.setattr(scheduler, "LONG_SHARE", 2)
    shorts = [world.request(10, 5, 4 + i, 0) for i in range(5)]
    world.scheduler.max_sequences = 9
    planned = dict(world.scheduler.plan(48))
    assert sum(planned[each] for each in (short, *shorts) if each in planned) == 24
    assert planned[long] + planned[longer] == 47 // 2  # though shorter ones wait


@settings(max_examples=60, deadline=None)
@given(
    n_prompts=st.lists(st.integers(2, 60), min_size=1, max_size=8),
    younger=st.lists(st.integers(2, 60), max_size=40),
    budget=st.integers(20, MAX_STEP),
    per_rank=st.sampled_from([2, 7, 30, 64]),
)
def test_younger_short_prompts_delay_few(
    n_prompts: list[int], younger: list[int], budget: int, per_rank: int
) -> None:
    """Beside two that decode, and while others keep coming. One waits for all that came before, and
    for a later one only if that is shorter, by so much for each that came between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "TOKENS_PER_RANK", per_rank)
        world = World(1000, 60, 0, 0)
        decoding = [world.request(20, 500, i, 0) for i in range(2)]
        while any(len(each.tokens) == 20 for each in decoding):
            world.step(MAX_STEP)
        n_arrived = itertools.count(2)

        def come(n_tokens: int) -> Entry:
            entry = world.request(n_tokens, 1, next(n_arrived), 0)
            entry.tokens[:] = [10 + n_tokens + entry.rank[1]] * n_tokens  # nothing is known of it
            return entry

        prompts = [come(n) for n in n_prompts]
        began = world.n_steps
        for i, prompt in enumerate(prompts):
            while prompt in world.left:
                if younger:
                    come(younger.pop())
                world.step(10, budget)
            ahead = sum(n_prompts[: i + 1])
            ahead += sum(range(n_prompts[i] - per_rank, 0, -per_rank))  # they came later
            # Of those that came before, too, each waits for later ones.
            ahead += sum(sum(range(n - per_rank, 0, -per_rank)) for n in n_prompts[:i])
            assert world.n_steps - began <= -(-ahead // (budget - len(decoding)))


def test_a_shorter_prompt_goes_first() -> None:
    world = World(200, 12, 0, 0)
    decodes = world.request(20, 60, 0, 0)
    world.step(MAX_STEP)
    long = world.request(400, 1, 1, 0)
    assert dict(world.scheduler.plan(1, 48)) == {decodes: 1, long: 47}
    short = world.request(30, 1, 2, 0)
    assert dict(world.scheduler.plan(1, 48)) == {decodes: 1, short: 30, long: 17}
    # Two and a half hundred came meanwhile: its turn is before theirs.
    late = world.request(30, 1, 250, 0)
    assert dict(world.scheduler.plan(1, 48)) == {decodes: 1, short: 30, long: 17}
    urgent = world.request(47, 1, 251, 4)
    assert dict(world.scheduler.plan(1, 48)) == {decodes: 1, urgent: 47}
    n_left = 400 + 30 + 47
    while long in world.left:
        assert late.sequence.n_computed == 0
        world.request(20, 1, 300 + world.n_steps, 0)
        world.step(1, 48)
        n_left -= 47
        assert (long in world.left) == (n_left > 0)


def test_short_prompts_may_take_more_of_a_step_than_long_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "SHORT_PROMPT_TOKENS", 30)
    world = World(100, 6, 0, 0)
    first = world.request(20, 60, 0, 0)
    assert world.step(MAX_STEP) == [first]
    long = world.request(150, 1, 1, 0)
    assert dict(world.scheduler.plan(11, 40)) == {first: 1, long: 10}
    short, other = world.request(28, 5, 2, 0), world.request(30, 5, 3, 0)
    assert dict(world.scheduler.plan(11, 40)) == {first: 1, short: 28, other: 3, long: 8}
    assert dict(world.scheduler.plan(48, 0)) == {first: 1, short: 28, other: 11, long: 8}
    world.end(other)
    assert dict(world.scheduler.plan(48, 40)) == {first: 1, short: 28, long: 19}
    world.end(short)
    assert dict(world.scheduler.plan(48, 40)) == {first: 1, long: 47}


def test_priority_goes_first_but_nobody_starves() -> None:
    world = World(100, 1, 0, 0)
    low = world.request(40, 2, 0, -1)
    later = []
    for arrival in range(1, 3 * AHEAD):
        later.append(world.request(40, 1, arrival, 0))
        world.step(MAX_STEP)
        if low not in world.left:
            break
    assert AHEAD <= len(later) <= AHEAD + 2
    assert sum(entry not in world.left for entry in later) >= AHEAD - 1


def test_holding_the_last_token() -> None:
    world = World(100, 2, 0, 0)
    entry = world.request(30, 1, 0, 0)
    entry.holds_last = True
    world.step(MAX_STEP)
    assert entry.n_pending == 0 and entry in world.left and world.scheduler.plan(MAX_STEP) == []
    entry.holds_last = False
    world.step(MAX_STEP)
    assert not world.left


def test_what_never_fits() -> None:
    world = World(10, 2, 0, 0)
    with pytest.raises(ArgumentError, match="need 11 blocks of the cache, and it has 10"):
        world.request(300, 20, 0, 0)
    world.request(270, 18, 0, 0)
