"""Pages that the pool gave up, in memory of the process. One thread's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from localllm.engine.kv_pages import Page, PageIndex


class RamTier:
    """At most `capacity` bytes of contents. What was not used for longest goes first, and of pages
    used together the last one."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.index = PageIndex()
        self._contents: OrderedDict[bytes, dict[int, bytes]] = OrderedDict()
        self.n_bytes = 0

    def get(self, name: bytes, group: int) -> bytes | None:
        return self._contents.get(name, {}).get(group)

    def put(self, page: Page, group: int, content: bytes) -> None:
        if len(content) > self._capacity:
            return
        for shorter in self.index.shorter(page):
            self.remove(shorter.name)
        if page.name not in self._contents:
            self._contents[page.name] = {}
            self.index.add(page)
        mine = self._contents[page.name]
        self.n_bytes += len(content) - len(mine.get(group, b""))
        mine[group] = content
        self._contents.move_to_end(page.name)
        while self.n_bytes > self._capacity:
            self.remove(next(iter(self._contents)))

    def touch(self, names: Sequence[bytes]) -> None:
        """Pages of one sequence, first to last, were used."""
        for name in reversed(names):
            if name in self._contents:
                self._contents.move_to_end(name)

    def remove(self, name: bytes) -> None:
        self.n_bytes -= sum(map(len, self._contents.pop(name).values()))
        self.index.remove(name)

    def clear(self) -> None:
        for name in list(self._contents):
            self.remove(name)
