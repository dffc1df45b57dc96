"""The shape of a conversation: which message follows which, and which branch is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Node:
    """parent: None for a first message. chosen: the child that was shown last."""

    parent: int | None
    chosen: int | None = None


class Tree:
    """Messages by id. A parent that is not there counts as none; a circle, which only a damaged
    file holds, is cut."""

    def __init__(self, nodes: Iterable[tuple[int, int | None, int | None]] = ()) -> None:
        self.nodes = {id: Node(parent, chosen) for id, parent, chosen in nodes}
        self._children: dict[int | None, list[int]] | None = None

    def add(self, id: int, parent: int | None, chosen: int | None = None) -> None:
        """A new message."""
        self.nodes[id] = Node(parent, chosen)
        self._children = None

    def drop(self, id: int) -> None:
        """Takes a message away; those below it become first ones."""
        self.nodes.pop(id, None)
        self._children = None

    def parent(self, id: int) -> int | None:
        """None for a first message, and for one that is not there."""
        node = self.nodes.get(id)
        return node.parent if node is not None and node.parent in self.nodes else None

    def children(self, id: int | None) -> list[int]:
        """Those that follow a message, or the first messages, in order of their making."""
        if self._children is None:
            self._children = {}
            for each in sorted(self.nodes):
                self._children.setdefault(self.parent(each), []).append(each)
        return self._children.get(id, [])

    def siblings(self, id: int) -> tuple[int, ...]:
        """All alternatives at the place of a message, itself among them."""
        return tuple(self.children(self.parent(id))) if id in self.nodes else ()

    def path(self, leaf: int | None) -> list[int]:
        """From a first message down to `leaf`."""
        found: dict[int, None] = {}
        at = leaf if leaf in self.nodes else None
        while at is not None and at not in found:
            found[at] = None
            at = self.parent(at)
        return list(found)[::-1]

    def down(self, id: int) -> int:
        """The end of the branch below a message: where it was left last, else its newest one."""
        seen = {id}
        while below := self.children(id):
            chosen = self.nodes[id].chosen
            id = chosen if chosen in below else below[-1]
            if id in seen:
                break
            seen.add(id)
        return id

    def leaves(self) -> list[int]:
        """The last messages of all branches."""
        return [id for id in sorted(self.nodes) if not self.children(id)]
