"""Pages: blocks of the KV pool that have a name, and so can lie elsewhere.

A page's name is a blake2b-256 hash chained over its parent's name, so it stands for the whole
prefix that the block's contents depend on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class Page:
    """A page without its contents. tokens: fewer than a block's at the end of a sequence. depth:
    pages before it."""

    name: bytes
    parent: bytes
    tokens: tuple[int, ...]
    depth: int


def page_name(parent: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=32).digest()


def n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


class PageIndex:
    """Pages by name, and by parent and first token: one is looked for by a part of its tokens,
    too."""

    def __init__(self) -> None:
        self._pages: dict[bytes, Page] = {}
        self._children: dict[tuple[bytes, int], dict[bytes, Page]] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, name: bytes) -> bool:
        return name in self._pages

    def __iter__(self) -> Iterator[Page]:
        return iter(list(self._pages.values()))

    def get(self, name: bytes) -> Page | None:
        return self._pages.get(name)

    def children(self, parent: bytes, first_token: int) -> list[Page]:
        return list(self._children.get((parent, first_token), {}).values())

    def shorter(self, page: Page) -> list[Page]:
        """Pages that are the beginning of this one, and so of no use beside it."""
        return [
            other
            for other in self.children(page.parent, page.tokens[0])
            if len(other.tokens) < len(page.tokens)
            and page.tokens[: len(other.tokens)] == other.tokens
        ]

    def add(self, page: Page) -> None:
        self._pages[page.name] = page
        self._children.setdefault((page.parent, page.tokens[0]), {})[page.name] = page

    def remove(self, name: bytes) -> None:
        page = self._pages.pop(name, None)
        if page is None:
            return
        key = page.parent, page.tokens[0]
        del self._children[key][name]
        if not self._children[key]:
            del self._children[key]
