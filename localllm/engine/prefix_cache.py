"""KV blocks found again by the tokens they hold, so that no common prefix is computed twice.

A block's name is a blake2b-256 hash chained over its parent's name, so it stands for the whole
prefix; the tokens are compared as well. The cache holds one reference on each block it knows, and
gives up what nobody else holds when the pool runs out: the least recently used first, and of a
prefix its end before its beginning. A block may be used as far as its tokens match: a sequence that
goes on from the middle of it writes to a copy. What the pool gives up, and what an earlier process
computed, may come back from the tiers (kv_tier.py).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from localllm.engine.blocks import (
    BLOCK_TOKENS,
    BlockPool,
    BlockTable,
    PoolFullError,
    first_seen,
)
from localllm.engine.kv_pages import Page, n_common, page_name
from localllm.engine.kv_tier import Cold, KvTiers


@dataclass(eq=False)
class _Node:
    page: Page
    blocks: list[int]  # one per layer group; -1: not there, its window had left it
    used: int = 0  # the time it was used last, counted in uses

    @property
    def name(self) -> bytes:
        return self.page.name

    @property
    def parent(self) -> bytes:
        return self.page.parent

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.page.tokens


@dataclass
class Mark:
    """How far a sequence is stored."""

    name: bytes
    n_blocks: int = 0


@dataclass(frozen=True)
class Further:
    """A prefix that the pool and the tiers hold together. n: its tokens; pages: its blocks, first
    to last; missing: what of them the pool lacks."""

    n: int
    pages: list[Page]
    missing: list[tuple[Page, tuple[int, ...]]]


class PrefixCache:
    """`windows` [n_groups]: 0 is full attention. `key` names all that the contents of a block
    depend on besides tokens: model, KV type, instruction set, arithmetic. Becomes the pool's
    cache."""

    def __init__(
        self,
        pool: BlockPool,
        windows: Sequence[int],
        key: bytes,
        tiers: KvTiers | None = None,
    ) -> None:
        self._pool, self._windows, self._tiers = pool, tuple(windows), tiers
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
            name = page_name(parent, part)
            node = self._node(Page(name, parent, part, n_blocks))
            if node.tokens != part:
                break
            self._share(node, n_blocks, table)
            self._touch(node)
            if not is_full and all(block < 0 for block in node.blocks):
                self._drop(node)  # its block is another node's, which is longer
            elif self._tiers is not None:
                self._tiers.keep(node.page, node.blocks)
            if is_full:
                parent, n_blocks = name, n_blocks + 1
        if tail and self._tiers is not None:
            self._complete(parent, self._tiers)
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
            node = self._nodes.get(page_name(name, rest)) if len(rest) == BLOCK_TOKENS else None
            if node is None or node.tokens != rest:
                break
            found.append(node)
            name, n = node.name, n + BLOCK_TOKENS
        n_tail = 0
        if rest:
            for node in self._children.get(name, {}).get(rest[0], ()):
                n_same = n_common(node.tokens, rest)
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

    def further(
        self, tokens: Sequence[int], n_found: int, salt: bytes, max_blocks: int
    ) -> Further | None:
        """A prefix that is longer than the n_found tokens that `find` found in the pool, with the
        help of the tiers: by max_blocks blocks at the most."""
        pages, n = self._known_pages(tokens[:-1], self.start(salt).name)
        most = (n_found // BLOCK_TOKENS + max_blocks) * BLOCK_TOKENS
        n = min(n, most)
        while n > n_found:
            n_blocks = -(-n // BLOCK_TOKENS)
            missing = self._missing(pages[:n_blocks], n)
            if missing is not None:
                return Further(n, pages[:n_blocks], missing)
            n = (n_blocks - 1) * BLOCK_TOKENS
        return None

    def restore(self, further: Further, cold: Cold) -> tuple[int, BlockTable, Mark]:
        """As much of a prefix as came back, as `find` returns it. The pool has room for it, or it
        is shorter."""
        table = BlockTable(self._pool, self._windows)
        firsts = self._firsts(further.n)
        nodes = [self._nodes.get(page.name) for page in further.pages]
        for group, blocks in enumerate(table.entries):
            for i, node in enumerate(nodes):
                known = -1 if node is None or i < firsts[group] else node.blocks[group]
                blocks.append(known)
                if known >= 0:
                    self._pool.retain(group, known)
        for i, page in enumerate(further.pages):
            if not self._fill(i, page, table, firsts, cold):
                self._drop_empty(further.pages[:i])
                break
        n = further.n
        while n and not table.reaches(n):
            n = (-(-n // BLOCK_TOKENS) - 1) * BLOCK_TOKENS
        table.truncate(n)
        if self._tiers is not None:
            self._tiers.touch([page.name for page in further.pages[: -(-n // BLOCK_TOKENS)]])
        n_full = n // BLOCK_TOKENS
        name = further.pages[n_full - 1].name if n_full else further.pages[0].parent
        return n, table, Mark(name, n_full)

    def n_idle(self, group: int) -> int:
        return self._n_idle[group]

    def reclaim(self, group: int) -> None:
        queue = self._queues[group]
        while True:
            used, _, node = heapq.heappop(queue)
            if used != node.used or not self._may_go(node, group):
                continue
            if self._tiers is not None:
                for each in self._groups() if not self._windows[group] else (group,):
                    if node.blocks[each] >= 0:
                        self._tiers.cool(node.page, each, node.blocks[each])
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

    def _node(self, page: Page) -> _Node:
        """The node of a page; a new one has no blocks."""
        node = self._nodes.get(page.name)
        if node is None:
            node = self._nodes[page.name] = _Node(page, [-1] * len(self._windows))
            siblings = self._children.setdefault(page.parent, {})
            siblings.setdefault(page.tokens[0], []).append(node)
        return node

    def _complete(self, name: bytes, tiers: KvTiers) -> None:
        """An answer has ended: what of its pages the disk had no time for is offered again."""
        names = []
        while (node := self._nodes.get(name)) is not None:
            tiers.keep(node.page, node.blocks)
            names.append(name)
            name = node.parent
        tiers.touch(names[::-1])

    def _known_pages(self, tokens: Sequence[int], name: bytes) -> tuple[list[Page], int]:
        """The pages that hold the longest known beginning of tokens, and its length."""
        assert self._tiers is not None
        pages: list[Page] = []
        rest: tuple[int, ...] = ()
        for begin in range(0, len(tokens), BLOCK_TOKENS):
            rest = tuple(tokens[begin : begin + BLOCK_TOKENS])
            child = page_name(name, rest)
            node = self._nodes.get(child)
            page = self._tiers.get(child) if node is None else node.page
            if page is None or page.tokens != rest or len(rest) < BLOCK_TOKENS:
                break
            pages.append(page)
            name, rest = child, ()
        n = len(pages) * BLOCK_TOKENS
        if rest:
            near = [each.page for each in self._children.get(name, {}).get(rest[0], ())]
            near += self._tiers.children(name, rest[0])
            if near:
                last = max(near, key=lambda page: n_common(page.tokens, rest))
                return [*pages, last], n + n_common(last.tokens, rest)
        return pages, n

    def _missing(self, pages: list[Page], n: int) -> list[tuple[Page, tuple[int, ...]]] | None:
        """What the pool lacks of pages of which n tokens are used; None: a tier lacks it, too."""
        assert self._tiers is not None
        firsts, found = self._firsts(n), []
        for i, page in enumerate(pages):
            node = self._nodes.get(page.name)
            groups = tuple(
                group
                for group in self._groups()
                if i >= firsts[group] and (node is None or node.blocks[group] < 0)
            )
            if not all(self._tiers.holds(page.name, group) for group in groups):
                return None
            if groups:
                found.append((page, groups))
        return found

    def _firsts(self, n: int) -> list[int]:
        """Per group the first block that a token behind n tokens sees."""
        return [first_seen(n, window) if window else 0 for window in self._windows]

    def _fill(self, i: int, page: Page, table: BlockTable, firsts: list[int], cold: Cold) -> bool:
        """Gives a table the blocks of page i that it lacks, and the cache its node. False: not all
        came back, or the pool is full."""
        assert self._tiers is not None
        for group, blocks in enumerate(table.entries):
            if blocks[i] >= 0 or i < firsts[group]:
                continue
            content = cold.content(page, group)
            if content is None:
                return False
            try:
                block = self._pool.allocate(group)
            except PoolFullError:
                return False
            self._tiers.restore(group, block, content)
            blocks[i] = block
        node = self._node(page)
        self._share(node, i, table)
        self._touch(node)
        return True

    def _drop_empty(self, pages: list[Page]) -> None:
        """Nodes that were made for what did not come back."""
        node = self._nodes.get(pages[-1].name) if pages else None
        if node is None or node.name in self._children:
            return
        if all(block < 0 for block in node.blocks):
            self._drop(node)

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
