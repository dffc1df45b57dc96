"""The prefix cache over random conversations: hits are right, counts exact, all is given back."""

from __future__ import annotations

import random

import pytest

from localllm.engine.blocks import BLOCK_TOKENS, BlockPool, BlockTable
from localllm.engine.prefix_cache import PrefixCache

CAPACITY = (24, 16)


def never_copy(group: int, source: int, destination: int) -> None:
    raise AssertionError("a full block is never written again")


@pytest.mark.parametrize("windows", [(0, 0), (0, 40)])
@pytest.mark.parametrize("seed", range(5))
def test_random_conversations(windows: tuple[int, int], seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(CAPACITY)
    cache = PrefixCache(pool, windows, b"model")
    prefix_of: dict[tuple[int, int], tuple[bytes, tuple[int, ...]]] = {}
    hits = 0
    for _ in range(400):
        salt = rng.choice([b"", b"a"])
        tokens = [t for _ in range(rng.randint(1, 5)) for t in [rng.randint(0, 1)] * BLOCK_TOKENS]
        tokens += [7] * rng.randint(1, BLOCK_TOKENS - 1)
        n, table = cache.find(tokens, salt)
        hits += n > 0
        for group, blocks in enumerate(table.entries):
            for i, block in enumerate(blocks):
                expected = (salt, tuple(tokens[: (i + 1) * BLOCK_TOKENS]))
                assert block < 0 or prefix_of[group, block] == expected
        for group in range(2):
            needed = -(-len(tokens) // BLOCK_TOKENS) - n // BLOCK_TOKENS
            while pool.n_free(group) < needed:
                before = pool.n_free(group), cache.n_evictable(group)
                assert cache.evict(group)
                assert pool.n_free(group) == before[0] + 1
                assert cache.n_evictable(group) < before[1]
        table.prepare(n, len(tokens) - n, never_copy)
        for group, blocks in enumerate(table.entries):
            for i in range(n // BLOCK_TOKENS, len(tokens) // BLOCK_TOKENS):
                prefix_of[group, blocks[i]] = (salt, tuple(tokens[: (i + 1) * BLOCK_TOKENS]))
        table.drop_left_behind(len(tokens))
        cache.store(tokens, table, salt)
        table.clear()
        for group in range(2):
            assert pool.n_free(group) + cache.n_evictable(group) == CAPACITY[group]
    assert hits > 50
    cache.clear()
    assert [pool.n_free(group) for group in range(2)] == list(CAPACITY)


def test_least_recently_used_leaf_goes_first() -> None:
    pool = BlockPool([8])
    cache = PrefixCache(pool, [0], b"")
    texts = [[word] * BLOCK_TOKENS + [9] for word in range(3)]
    for text in texts:
        table = BlockTable(pool, [0])
        table.prepare(0, len(text), never_copy)
        cache.store(text, table)
        table.clear()
    cache.find(texts[0])[1].clear()
    assert cache.evict(0)
    found = []
    for text in texts:
        n, table = cache.find(text)
        table.clear()
        found.append(n)
    assert found == [BLOCK_TOKENS, 0, BLOCK_TOKENS]
