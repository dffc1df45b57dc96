"""Full KV blocks found again by the tokens they hold, so that no common prefix is computed twice.

A block's name is a blake2b-256 hash chained over its parent's name, so it stands for the whole
prefix; the tokens are compared as well. The cache holds one reference on each block it knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from localllm.engine.blocks import BLOCK_TOKENS, BlockPool, BlockTable


@dataclass
class _Node:
    parent: bytes
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]  # one per layer group; -1: its window had left it behind
    n_children: int = 0


class PrefixCache:
    """`windows` [n_groups]: 0 is full attention. `key` names all that the contents of a block
    depend on besides tokens: model, KV type, instruction set, arithmetic."""

    def __init__(self, pool: BlockPool, windows: Sequence[int], key: bytes) -> None:
        self._pool, self._windows, self._key = pool, tuple(windows), key
        self._nodes: OrderedDict[bytes, _Node] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    def store(self, tokens: Sequence[int], table: BlockTable, salt: bytes = b"") -> None:
        """Remembers the full blocks of a sequence that has computed `tokens`."""
        root = self._root(salt)
        parent = root
        for i, (name, part) in enumerate(self._chain(root, tokens)):
            node = self._nodes.get(name)
            if node is None:
                blocks = tuple(group[i] for group in table.entries)
                for group, block in enumerate(blocks):
                    if block >= 0:
                        self._pool.retain(group, block)
                node = self._nodes[name] = _Node(parent, part, blocks)
                if parent != root:
                    self._nodes[parent].n_children += 1
            self._nodes.move_to_end(name)
            parent = name

    def find(self, tokens: Sequence[int], salt: bytes = b"") -> tuple[int, BlockTable]:
        """The longest known prefix in tokens, at most all but the last token, whose logits are
        wanted; and a table that shares its blocks."""
        found: list[_Node] = []
        for name, part in self._chain(self._root(salt), tokens[:-1]):
            node = self._nodes.get(name)
            if node is None or node.tokens != part:
                break
            self._nodes.move_to_end(name)
            found.append(node)
        table = BlockTable(self._pool, self._windows)
        for n in range(len(found), 0, -1):
            table.entries = [[node.blocks[g] for node in found[:n]] for g in self._groups()]
            if table.reaches(n * BLOCK_TOKENS):
                return n * BLOCK_TOKENS, table.fork()
        return 0, BlockTable(self._pool, self._windows)

    def n_evictable(self, group: int) -> int:
        """Blocks of a group that only the cache holds."""
        return sum(self._frees(node, group) for node in self._nodes.values())

    def evict(self, group: int) -> bool:
        """Makes one more block of a group free, if any is held by the cache alone."""
        while self.n_evictable(group):
            leaves = [name for name, node in self._nodes.items() if not node.n_children]
            frees = (name for name in leaves if self._frees(self._nodes[name], group))
            name = next(frees, leaves[0])
            freed = self._frees(self._nodes[name], group)
            self._drop(name)
            if freed:
                return True
        return False

    def clear(self) -> None:
        for node in self._nodes.values():
            self._release(node)
        self._nodes.clear()

    def _frees(self, node: _Node, group: int) -> bool:
        block = node.blocks[group]
        return block >= 0 and self._pool.references(group, block) == 1

    def _drop(self, name: bytes) -> None:
        node = self._nodes.pop(name)
        self._release(node)
        if node.parent in self._nodes:
            self._nodes[node.parent].n_children -= 1

    def _release(self, node: _Node) -> None:
        for group, block in enumerate(node.blocks):
            if block >= 0:
                self._pool.release(group, block)

    def _groups(self) -> range:
        return range(len(self._windows))

    def _root(self, salt: bytes) -> bytes:
        key = blake2b(self._key, digest_size=32).digest()
        return blake2b(key + salt, digest_size=32).digest()

    @staticmethod
    def _chain(root: bytes, tokens: Sequence[int]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        name = root
        for begin in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            part = tuple(tokens[begin : begin + BLOCK_TOKENS])
            packed = b"".join(token.to_bytes(4, "little") for token in part)
            name = blake2b(name + packed, digest_size=32).digest()
            yield name, part
