"""The prefix cache over random conversations: hits are right, counts exact, all is given back."""

from __future__ import annotations

import random

import pytest

from localllm.engine.blocks import BLOCK_TOKENS, BlockPool, BlockTable, PoolFullError
from localllm.engine.prefix_cache import PrefixCache

CAPACITY = (24, 16)
Contents = dict[tuple[int, int, int], tuple[bytes, tuple[int, ...]]]


def never_copy(group: int, source: int, destination: int) -> None:
    raise AssertionError("a block that nobody shares is not copied")


class World:
    """A pool whose positions hold the prefix that they were computed from."""

    def __init__(self, seed: int, windows: tuple[int, int]) -> None:
        self.random = random.Random(seed)
        self.windows = windows
        self.pool = BlockPool(CAPACITY)
        self.cache = PrefixCache(self.pool, windows, b"model")
        self.contents: Contents = {}
        self.live: list[tuple[BlockTable, list[int]]] = []

    def copy(self, group: int, source: int, destination: int) -> None:
        for i in range(BLOCK_TOKENS):
            self.contents.pop((group, destination, i), None)
            if (group, source, i) in self.contents:
                self.contents[group, destination, i] = self.contents[group, source, i]

    def tokens(self) -> list[int]:
        parts = range(self.random.randint(1, 5))
        tokens = [t for _ in parts for t in [self.random.randint(0, 1)] * BLOCK_TOKENS]
        return tokens[self.random.randint(0, BLOCK_TOKENS - 1) :]

    def talk(self) -> int:
        """One sequence from its prompt to its end, in steps. Returns what was found of it."""
        salt = self.random.choice([b"", b"a"])
        tokens = self.tokens()
        n, table, mark = self.cache.find(tokens, salt)
        n_found = n
        assert n < len(tokens) and table.reaches(n)
        self.check_contents(table, tokens, n, salt)
        while n < len(tokens):
            step = min(self.random.randint(1, 40), len(tokens) - n)
            room = [self.pool.n_available(g) for g in range(2)]
            missing = table.missing(n, step)
            try:
                table.prepare(n, step, self.copy)
            except PoolFullError:
                assert any(m > r for m, r in zip(missing, room, strict=True))
                table.clear()
                return n_found
            for pos in range(n, n + step):
                for group, blocks in enumerate(table.entries):
                    block = blocks[pos // BLOCK_TOKENS]
                    assert self.pool.references(group, block) == 1
                    written = (salt, tuple(tokens[: pos + 1]))
                    self.contents[group, block, pos % BLOCK_TOKENS] = written
            n += step
            mark = self.cache.store(tokens[:n], table, mark)
            table.drop_left_behind(n)
            self.check_contents(table, tokens, n, salt)
        self.cache.store(tokens, table, mark, tail=True)
        self.check_contents(table, tokens, n, salt)
        if self.random.random() < 0.3 and len(self.live) < 2:
            self.live.append((table, tokens))
        else:
            table.clear()
        if self.live and self.random.random() < 0.3:
            self.live.pop(0)[0].clear()
        return n_found

    def check_contents(self, table: BlockTable, tokens: list[int], n: int, salt: bytes) -> None:
        for group, blocks in enumerate(table.entries):
            for pos in range(n):
                block = blocks[pos // BLOCK_TOKENS]
                expected = (salt, tuple(tokens[: pos + 1]))
                assert block < 0 or self.contents[group, block, pos % BLOCK_TOKENS] == expected

    def check_counts(self) -> None:
        held: list[set[int]] = [set(), set()]
        for table, _ in self.live:
            for group, blocks in enumerate(table.entries):
                held[group] |= {block for block in blocks if block >= 0}
        for group, capacity in enumerate(CAPACITY):
            assert self.pool.n_available(group) == capacity - len(held[group])


@pytest.mark.parametrize("windows", [(0, 0), (0, 40)])
@pytest.mark.parametrize("seed", range(5))
def test_random_conversations(windows: tuple[int, int], seed: int) -> None:
    world = World(seed, windows)
    n_hits = n_odd = 0
    for _ in range(300):
        n = world.talk()
        n_hits += n > 0
        n_odd += n % BLOCK_TOKENS > 0
        world.check_counts()
    assert n_hits > 50 and n_odd > 20
    for table, _ in world.live:
        table.clear()
    held = [world.pool.allocate(g) for g in range(2) for _ in range(CAPACITY[g])]
    assert len(held) == sum(CAPACITY) and len(world.cache) == 0


def stored(cache: PrefixCache, pool: BlockPool, tokens: list[int]) -> None:
    n, table, mark = cache.find(tokens)
    table.prepare(n, len(tokens) - n, lambda *_: None)
    cache.store(tokens, table, mark, tail=True)
    table.clear()


def found(cache: PrefixCache, tokens: list[int]) -> int:
    n, table, _ = cache.find(tokens)
    table.clear()
    return n


def test_least_recently_used_goes_first_and_ends_before_beginnings() -> None:
    pool = BlockPool([6])
    cache = PrefixCache(pool, [0], b"")
    texts = [[word] * 2 * BLOCK_TOKENS + [9] for word in range(3)]
    for text in texts:
        stored(cache, pool, text[:-1])
    assert [found(cache, text) for text in (texts[0], texts[2])] == [64, 64]
    assert pool.n_free(0) == 0
    pool.allocate(0)
    assert found(cache, texts[1]) == 32
    assert [found(cache, text) for text in texts] == [64, 32, 64]


def test_a_block_is_used_as_far_as_it_matches() -> None:
    pool = BlockPool([8])
    cache = PrefixCache(pool, [0], b"")
    stored(cache, pool, list(range(50)))
    assert found(cache, list(range(50))) == 49
    assert found(cache, [*range(40), 999, 1000]) == 40
    assert found(cache, [*range(20), 999]) == 20


def test_a_window_that_was_left_is_there_again() -> None:
    pool = BlockPool([40, 40])
    cache = PrefixCache(pool, [0, 32], b"")
    text = [i // 7 for i in range(10 * BLOCK_TOKENS)]
    table = BlockTable(pool, [0, 32])
    table.prepare(0, len(text), never_copy)
    table.drop_left_behind(len(text))
    cache.store(text, table, cache.start())
    table.clear()
    assert found(cache, [*text[:64], 999]) == 0  # its window is gone
    table = BlockTable(pool, [0, 32])
    table.prepare(0, 64, never_copy)
    cache.store(text[:64], table, cache.start())
    table.clear()
    assert found(cache, [*text[:64], 999]) == 64
    assert found(cache, [*text, 999]) == len(text)


def test_two_who_computed_the_same_keep_one_copy() -> None:
    pool = BlockPool([6])
    cache = PrefixCache(pool, [0], b"")
    text = list(range(70))
    tables = [BlockTable(pool, [0]) for _ in range(2)]
    for table in tables:
        table.prepare(0, len(text), never_copy)
    assert pool.n_free(0) == 0
    for table in tables:
        cache.store(text, table, cache.start())
    assert pool.n_free(0) == 2 and tables[0].entries[0][:2] == tables[1].entries[0][:2]
