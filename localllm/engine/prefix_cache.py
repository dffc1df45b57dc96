"""KV blocks found again by the tokens they hold, so that no common prefix is computed twice.

A block's name is a blake2b-256 hash chained over its parent's name, so it stands for the whole
prefix; the tokens are compared as well. The cache holds one reference on each block it knows, and
gives up what nobody else holds when the pool runs out: the least recently used first, and of a
prefix its end before its beginning. A block may be used as far as its tokens match: a sequence that
goes on from the middle of it writes to a copy.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from localllm.engine.blocks import BLOCK_TOKENS, BlockPool, BlockTable


@dataclass(eq=False)
class _Node:
    name: bytes
    parent: bytes
    tokens: tuple[int, ...]  # fewer than a block's: the end of a sequence
    blocks: list[int]  # one per layer group; -1: not there, its window had left it
    used: int = 0  # the time it was used last, counted in uses


@dataclass
class Mark:
    """How far a sequence is stored."""

    name: bytes
    n_blocks: int = 0


class PrefixCache:
    """`windows` [n_groups]: 0 is full attention. `key` names all that the contents of a block
    depend on besides tokens: model, KV type, instruction set, arithmetic. Becomes the pool's
    cache."""

    def __init__(self, pool: BlockPool, windows: Sequence[int], key: bytes) -> None:
        self._pool, self._windows = pool, tuple(windows)
        self._key = blake2b(key, digest_size=32).digest()
        self._nodes: dict[bytes, _Node] = {}
        #: By parent and first token: a block is looked for by a part of its tokens, too.
        self._children: dict[bytes, dict[int, list[_Node]]] = {}
        self._of_block: list[dict[int, _Node]] = [{} for _ in windows]
        self._n_idle = [0] * len(windows)
        self._clock = itertools.count()
        #: Per group (used, order, node), some of them outdated: what may be given up.
        self._queues: list[list[tuple[int, int, _Node]]] = [[] for _ in windows]
        pool.cache = self

    def __len__(self) -> int:
        return len(self._nodes)

    def start(self, salt: bytes = b"") -> Mark:
        """The beginning of a sequence. What one salt stored, no other one finds."""
        return Mark(blake2b(self._key + salt, digest_size=32).digest())

    def store(
        self, tokens: Sequence[int], table: BlockTable, mark: Mark, *, tail: bool = False
    ) -> Mark:
        """Remembers the blocks behind `mark` of a sequence that has computed `tokens`; tail: also
        the last one, if it is partly filled. Where the cache knows the same tokens, the table takes
        over the cache's block. Returns the new mark, which stands for full blocks."""
        parent, n_blocks = mark.name, mark.n_blocks
        if n_blocks and parent not in self._nodes:
            return mark
        for begin in range(n_blocks * BLOCK_TOKENS, len(tokens), BLOCK_TOKENS):
            part = tuple(tokens[begin : begin + BLOCK_TOKENS])
            is_full = len(part) == BLOCK_TOKENS
            if not is_full and not tail:
                break
            name = _name(parent, part)
            node = self._nodes.get(name)
            if node is None:
                node = _Node(name, parent, part, [-1] * len(self._windows))
                self._nodes[name] = node
                self._children.setdefault(parent, {}).setdefault(part[0], []).append(node)
            elif node.tokens != part:
                break
            self._share(node, begin // BLOCK_TOKENS, table)
            self._touch(node)
            if not is_full and all(block < 0 for block in node.blocks):
                self._drop(node)  # its block is another node's, which is longer
            if is_full:
                parent, n_blocks = name, n_blocks + 1
        return Mark(parent, n_blocks)

    def find(self, tokens: Sequence[int], salt: bytes = b"") -> tuple[int, BlockTable, Mark]:
        """The longest known prefix in tokens, at most all but the last token, whose logits are
        wanted; a table that shares its blocks, and the mark of the full ones."""
        mark = self.start(salt)
        wanted, name = tokens[:-1], mark.name
        found: list[_Node] = []
        n = 0
        while True:
            rest = tuple(wanted[n : n + BLOCK_TOKENS])
            node = self._nodes.get(_name(name, rest)) if len(rest) == BLOCK_TOKENS else None
            if node is None or node.tokens != rest:
                break
            found.append(node)
            name, n = node.name, n + BLOCK_TOKENS
        n_tail = 0
        if rest:
            for node in self._children.get(name, {}).get(rest[0], ()):
                n_same = _n_common(node.tokens, rest)
                if n_same > n_tail:
                    n_tail, tail = n_same, node
        if n_tail:
            found.append(tail)
            n += n_tail
        seen = BlockTable(self._pool, self._windows)
        while n:
            n_blocks = -(-n // BLOCK_TOKENS)
            seen.entries = [[node.blocks[g] for node in found[:n_blocks]] for g in self._groups()]
            if seen.reaches(n):
                break
            n = (n_blocks - 1) * BLOCK_TOKENS
        if not n:
            return 0, BlockTable(self._pool, self._windows), mark
        for node in found[: -(-n // BLOCK_TOKENS)]:
            self._touch(node)
        n_full = n // BLOCK_TOKENS
        if n_full:
            mark = Mark(found[n_full - 1].name, n_full)
        return n, seen.fork(), mark

    def n_idle(self, group: int) -> int:
        return self._n_idle[group]

    def reclaim(self, group: int) -> None:
        queue = self._queues[group]
        while True:
            used, _, node = heapq.heappop(queue)
            if used != node.used or not self._may_go(node, group):
                continue
            if self._windows[group]:
                self._release(node, group)
                if all(block < 0 for block in node.blocks) and node.name not in self._children:
                    self._drop(node)
            else:
                self._drop(node)
            return

    def became_idle(self, group: int, block: int) -> None:
        node = self._of_block[group].get(block)
        if node is not None:
            self._n_idle[group] += 1
            self._queue(node, group)

    def became_used(self, group: int, block: int) -> None:
        self._n_idle[group] -= block in self._of_block[group]

    def clear(self) -> None:
        for node in self._nodes.values():
            for group in self._groups():
                self._release(node, group)
        self._nodes.clear()
        self._children.clear()
        for queue in self._queues:
            queue.clear()

    def _share(self, node: _Node, i: int, table: BlockTable) -> None:
        """A block of a table becomes the node's, or the node's becomes the table's."""
        for group, blocks in enumerate(table.entries):
            own, known = blocks[i], node.blocks[group]
            if own < 0 or own == known:
                continue
            if known >= 0:
                self._pool.retain(group, known)
                self._pool.release(group, own)
                blocks[i] = known
            elif own not in self._of_block[group]:
                self._pool.retain(group, own)
                self._of_block[group][own] = node
                node.blocks[group] = own

    def _touch(self, node: _Node) -> None:
        node.used = next(self._clock)
        for group in self._groups():
            if self._may_go(node, group):
                self._queue(node, group)

    def _may_go(self, node: _Node, group: int) -> bool:
        """The beginning of a prefix has to stay as long as what follows it; behind a window it does
        not."""
        block = node.blocks[group]
        if block < 0 or self._of_block[group].get(block) is not node:
            return False
        is_idle = self._pool.references(group, block) == 1
        return is_idle and (bool(self._windows[group]) or node.name not in self._children)

    def _queue(self, node: _Node, group: int) -> None:
        queue = self._queues[group]
        if len(queue) > 2 * len(self._nodes) + 64:
            current = [each for each in self._nodes.values() if self._may_go(each, group)]
            queue[:] = [(each.used, next(self._clock), each) for each in current]
            heapq.heapify(queue)
        heapq.heappush(queue, (node.used, next(self._clock), node))

    def _drop(self, node: _Node) -> None:
        """Forgets a node without children."""
        for group in self._groups():
            self._release(node, group)
        del self._nodes[node.name]
        siblings = self._children[node.parent]
        siblings[node.tokens[0]].remove(node)
        if not siblings[node.tokens[0]]:
            del siblings[node.tokens[0]]
        if siblings:
            return
        del self._children[node.parent]
        parent = self._nodes.get(node.parent)
        if parent is None:
            return
        if all(block < 0 for block in parent.blocks):
            self._drop(parent)
            return
        for group in self._groups():
            if self._may_go(parent, group):
                self._queue(parent, group)

    def _release(self, node: _Node, group: int) -> None:
        block = node.blocks[group]
        if block < 0:
            return
        node.blocks[group] = -1
        del self._of_block[group][block]
        self._n_idle[group] -= self._pool.references(group, block) == 1
        self._pool.release(group, block)

    def _groups(self) -> range:
        return range(len(self._windows))


def _name(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=32).digest()


def _n_common(one: Sequence[int], other: Sequence[int]) -> int:
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n
