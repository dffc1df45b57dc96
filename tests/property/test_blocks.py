"""The block pool against a plain model: random forks, writes, windows and frees.

The model keeps, for every sequence and position, which write put the contents there. A pool that
hands out a block twice, forgets a reference or copies too late shows up as a wrong content.
"""

from __future__ import annotations

import os
import random

import pytest

from localllm.engine.blocks import (
    BLOCK_TOKENS,
    ROLLBACK_TOKENS,
    BlockPool,
    BlockTable,
    PoolFullError,
)

FULL = os.environ.get("FULL") == "1"
N_OPERATIONS = 1_000_000 if FULL else 50_000
WINDOWS = (0, 70)


class World:
    """Sequences over one pool, the contents of the pool, and what each sequence should see."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = BlockPool([40, 24])
        self.memory: dict[tuple[int, int], list[int]] = {}  # (group, block) -> 32 contents
        self.tables: list[BlockTable] = []
        self.written: list[list[int]] = []  # per sequence, per position
        self.longest: list[int] = []  # per sequence: where its last write began
        self.next_content = 0

    def copy_block(self, group: int, source: int, destination: int) -> None:
        # A block that a failed write gained may be shared before anything is in it.
        unwritten = [-1] * BLOCK_TOKENS
        self.memory[group, destination] = list(self.memory.get((group, source), unwritten))

    def new(self) -> None:
        self.tables.append(BlockTable(self.pool, WINDOWS))
        self.written.append([])
        self.longest.append(0)

    def fork(self) -> None:
        i = self.random.randrange(len(self.tables))
        self.tables.append(self.tables[i].fork())
        self.written.append(list(self.written[i]))
        self.longest.append(self.longest[i])

    def free(self) -> None:
        i = self.random.randrange(len(self.tables))
        self.tables.pop(i).clear()
        self.written.pop(i)
        self.longest.pop(i)

    def write(self) -> None:
        i = self.random.randrange(len(self.tables))
        table, written, n = self.tables[i], self.written[i], self.random.randint(1, 50)
        first = len(written)
        table.drop_left_behind(first)
        self.longest[i] = max(self.longest[i], first)
        try:
            table.prepare(first, n, self.copy_block)
        except PoolFullError:
            assert any(self.pool.n_free(g) == 0 for g in range(2))
            return
        for pos in range(first, first + n):
            self.next_content += 1
            written.append(self.next_content)
            for group in range(2):
                block = table.entries[group][pos // BLOCK_TOKENS]
                assert self.pool.references(group, block) == 1
                cell = self.memory.setdefault((group, block), [-1] * BLOCK_TOKENS)
                cell[pos % BLOCK_TOKENS] = self.next_content

    def roll_back(self) -> None:
        """A sequence is cut: a little is always possible, and what is possible is exact."""
        i = self.random.randrange(len(self.tables))
        table, written = self.tables[i], self.written[i]
        last = self.longest[i]
        n = self.random.randint(0, len(written))
        seen = [(max(0, n - w + 1) if w else 0) // BLOCK_TOKENS for w in WINDOWS]
        there = all(
            block >= 0
            for group, first in enumerate(seen)
            for block in table.entries[group][first : -(-n // BLOCK_TOKENS)]
        )
        assert table.reaches(n) == there
        assert there or last - n > ROLLBACK_TOKENS
        assert not table.reaches(len(table.entries[0]) * BLOCK_TOKENS + 1)
        if there:
            table.truncate(n)
            del written[n:]

    def check(self) -> None:
        counts: list[dict[int, int]] = [{}, {}]
        for table, written in zip(self.tables, self.written, strict=True):
            for group, window in enumerate(WINDOWS):
                blocks = table.entries[group]
                first_seen = max(0, len(written) - window + 1) if window else 0
                for pos in range(first_seen, len(written)):
                    block = blocks[pos // BLOCK_TOKENS]
                    assert self.memory[group, block][pos % BLOCK_TOKENS] == written[pos]
                for block in blocks:
                    if block >= 0:
                        counts[group][block] = counts[group].get(block, 0) + 1
        for group, capacity in enumerate(self.pool.capacity):
            for block in range(capacity):
                assert self.pool.references(group, block) == counts[group].get(block, 0)
            assert self.pool.n_free(group) == capacity - len(counts[group])
            assert len(set(self.pool.free_blocks(group))) == self.pool.n_free(group)


@pytest.mark.parametrize("seed", range(4))
def test_pool_against_a_model(seed: int) -> None:
    world = World(seed)
    for step in range(N_OPERATIONS // 4):
        choices = [world.new] if len(world.tables) < 6 else []
        if world.tables:
            choices += [world.write] * 6 + [world.fork] * 2 * (len(world.tables) < 6)
            choices += [world.roll_back] * 2 + [world.free]
        world.random.choice(choices)()
        if step % 50 == 0:
            world.check()
    while world.tables:
        world.free()
    world.check()
    assert [world.pool.n_free(g) for g in range(2)] == list(world.pool.capacity)


def test_errors() -> None:
    pool = BlockPool([1])
    block = pool.allocate(0)
    with pytest.raises(PoolFullError, match="all 1 KV blocks"):
        pool.allocate(0)
    pool.release(0, block)
    with pytest.raises(ValueError, match="already free"):
        pool.release(0, block)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.retain(0, block)
