"""Who owns which block of the paged KV pool.

A block holds the keys and values of 32 tokens for all layers of one layer group. Blocks are
reference-counted, so that sequences share a common prefix; a shared block is copied before a
sequence writes to it. The native side only knows block numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localllm.errors import LocalLLMError

BLOCK_TOKENS = 32
#: Tokens by which a sequence can always be rolled back, also behind a window.
ROLLBACK_TOKENS = 64

#: Copies a block on the native side: (group, source, destination).
CopyBlock = Callable[[int, int, int], None]


class PoolFullError(LocalLLMError):
    """No free block is left in a layer group."""


class BlockCache(Protocol):
    """Who keeps blocks for later, with one reference of its own on each."""

    def n_idle(self, group: int) -> int:
        """Blocks of a group that nobody else holds."""

    def reclaim(self, group: int) -> None:
        """Releases an idle block of a group."""

    def became_idle(self, group: int, block: int) -> None:
        """One reference is left on a block."""

    def became_used(self, group: int, block: int) -> None:
        """A block that had one reference has a second one."""


class BlockPool:
    """Reference counts and free lists, one per layer group. A `cache` gives idle blocks up when no
    free one is left.

    `capacity` [n_groups]: blocks in each group.
    """

    def __init__(self, capacity: Sequence[int]) -> None:
        self.capacity = tuple(capacity)
        self.cache: BlockCache | None = None
        self._references = [[0] * n for n in capacity]
        # The lowest numbers are handed out first: memory is committed when a block is first used.
        self._free = [list(range(n - 1, -1, -1)) for n in capacity]

    @property
    def n_groups(self) -> int:
        return len(self.capacity)

    def n_free(self, group: int) -> int:
        return len(self._free[group])

    def n_available(self, group: int) -> int:
        """Blocks that `allocate` can give: free ones, and those that only the cache holds."""
        idle = 0 if self.cache is None else self.cache.n_idle(group)
        return len(self._free[group]) + idle

    def references(self, group: int, block: int) -> int:
        return self._references[group][block]

    def allocate(self, group: int) -> int:
        """A block with one reference. Raises `PoolFullError`."""
        if not self._free[group] and self.cache is not None and self.cache.n_idle(group):
            self.cache.reclaim(group)
        if not self._free[group]:
            raise PoolFullError(
                f"all {self.capacity[group]} KV blocks of layer group {group} are in use",
                hint="free a sequence, or make the context larger",
            )
        block = self._free[group].pop()
        self._references[group][block] = 1
        return block

    def retain(self, group: int, block: int) -> None:
        if self._references[group][block] < 1:
            raise ValueError(f"block {block} of group {group} is free and cannot be shared")
        self._references[group][block] += 1
        if self.cache is not None and self._references[group][block] == 2:
            self.cache.became_used(group, block)

    def release(self, group: int, block: int) -> None:
        """Drops one reference; the last one makes the block free."""
        count = self._references[group][block]
        if count < 1:
            raise ValueError(f"block {block} of group {group} is already free")
        self._references[group][block] = count - 1
        if count == 1:
            self._free[group].append(block)
        elif count == 2 and self.cache is not None:
            self.cache.became_idle(group, block)

    def free_blocks(self, group: int) -> tuple[int, ...]:
        return tuple(self._free[group])


class BlockTable:
    """The blocks of one sequence: per layer group, the block of positions 32 b .. 32 b + 31.

    An entry of -1 is a block that the group's window has left behind.
    """

    def __init__(self, pool: BlockPool, windows: Sequence[int]) -> None:
        self._pool = pool
        self._windows = tuple(windows)  # 0: full attention
        self.entries: list[list[int]] = [[] for _ in windows]

    def fork(self) -> BlockTable:
        """A table that shares every block."""
        other = BlockTable(self._pool, self._windows)
        for group, blocks in enumerate(self.entries):
            for block in blocks:
                if block >= 0:
                    self._pool.retain(group, block)
            other.entries[group] = list(blocks)
        return other

    def drop_left_behind(self, next_pos: int) -> None:
        """Releases blocks that no token from `next_pos` on can see any more, nor one from
        ROLLBACK_TOKENS before it."""
        for group, window in enumerate(self._windows):
            if not window:
                continue
            blocks = self.entries[group]
            first = first_seen(next_pos - ROLLBACK_TOKENS, window)
            for i in range(min(first, len(blocks)) - 1, -1, -1):
                if blocks[i] < 0:
                    break
                self._pool.release(group, blocks[i])
                blocks[i] = -1

    def reaches(self, n_tokens: int) -> bool:
        """Whether the sequence can be rolled back to its first `n_tokens`: every block that the
        token after them sees is there."""
        n_blocks = -(-n_tokens // BLOCK_TOKENS)
        for group, window in enumerate(self._windows):
            blocks = self.entries[group]
            first = first_seen(n_tokens, window) if window else 0
            if len(blocks) < n_blocks or any(block < 0 for block in blocks[first:n_blocks]):
                return False
        return True

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first `n_tokens`, which `reaches` must hold for."""
        n_blocks = -(-n_tokens // BLOCK_TOKENS)
        for group, blocks in enumerate(self.entries):
            for block in blocks[n_blocks:]:
                if block >= 0:
                    self._pool.release(group, block)
            del blocks[n_blocks:]

    def prepare(self, first_pos: int, n_tokens: int, copy_block: CopyBlock) -> None:
        """Makes positions first_pos .. first_pos + n_tokens - 1 writable: allocates what is missing
        and copies what is shared. Raises `PoolFullError`; what was gained until then is kept."""
        first, last = first_pos // BLOCK_TOKENS, (first_pos + n_tokens - 1) // BLOCK_TOKENS
        for group, blocks in enumerate(self.entries):
            while len(blocks) <= last:
                blocks.append(self._pool.allocate(group))
            for i in range(first, last + 1):
                if self._pool.references(group, blocks[i]) > 1:
                    copy = self._pool.allocate(group)
                    copy_block(group, blocks[i], copy)
                    self._pool.release(group, blocks[i])
                    blocks[i] = copy

    def missing(self, first_pos: int, n_tokens: int) -> list[int]:
        """Blocks per group that `prepare` would allocate, if all that is shared stays shared."""
        first, last = first_pos // BLOCK_TOKENS, (first_pos + n_tokens - 1) // BLOCK_TOKENS
        found = []
        for group, blocks in enumerate(self.entries):
            n = max(0, last + 1 - len(blocks))
            for block in blocks[first : last + 1]:
                n += self._pool.references(group, block) > 1
            found.append(n)
        return found

    def holds_blocks(self) -> bool:
        return any(block >= 0 for blocks in self.entries for block in blocks)

    def clear(self) -> None:
        for group, blocks in enumerate(self.entries):
            for block in blocks:
                if block >= 0:
                    self._pool.release(group, block)
            blocks.clear()


class SequenceState:
    """A sequence known to a runner: how many of its tokens are in the pool, and where."""

    def __init__(self, table: BlockTable, n_computed: int = 0) -> None:
        self.table = table
        self.n_computed = n_computed

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first `n_tokens`; `table.reaches` must hold for them."""
        self.table.truncate(n_tokens)
        self.n_computed = min(self.n_computed, n_tokens)


def first_seen(position: int, window: int) -> int:
    """The first block that a token at `position` sees in a window."""
    return max(0, position - window + 1) // BLOCK_TOKENS
