"""The tree of a conversation against a model of it: whatever is done, no message is lost, and what
is shown is one path."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from localllm.tui.conversations import exporting, importing
from localllm.tui.conversations.store import Conversations
from localllm.tui.conversations.tree import Tree

FULL = os.environ.get("FULL") == "1"

nodes = st.lists(
    st.tuples(st.integers(1, 12), st.none() | st.integers(1, 14), st.none() | st.integers(1, 14)),
    max_size=12,
    unique_by=lambda row: row[0],
)


@given(nodes)
@settings(max_examples=1000 if FULL else 80, deadline=None)
def test_any_rows_make_a_tree(rows: list[tuple[int, int | None, int | None]]) -> None:
    """Also circles, and parents that are not there."""
    tree = Tree(rows)
    for id, parent, _ in rows:
        path = tree.path(id)
        assert path[-1] == id
        assert len(set(path)) == len(path)
        assert id in tree.siblings(id)
        assert tree.path(tree.down(id))  # it ends
        assert tree.parent(id) == (parent if parent in tree.nodes else None)
    assert tree.path(99) == [] == tree.path(None)
    assert tree.siblings(99) == ()
    assert len(tree.leaves()) <= len(rows)


class Talking(RuleBasedStateMachine):
    """One conversation, changed in every way, and what it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Conversations(Path(self.folder.name) / "c.sqlite")
        self.id = self.store.create(title="t").id
        self.store.change(self.id, draft="so that it stays while it has no messages")
        self.parents: dict[int, int | None] = {}
        self.chosen: dict[int | None, int] = {}
        self.leaf: int | None = None

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def _add(self, parent: int | None) -> None:
        message = self.store.add(self.id, parent, "user", f"text {len(self.parents)}")
        self.parents[message.id] = parent
        self.chosen[parent] = message.id
        self.leaf = message.id

    @rule()
    def go_on(self) -> None:
        self._add(self.leaf)

    @precondition(lambda self: self.parents)
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        self._add(self.parents[data.draw(st.sampled_from(sorted(self.parents)))])

    @precondition(lambda self: self.parents)
    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.parents)))
        self.store.select(self.id, at)
        up = at
        while (parent := self.parents[up]) is not None:
            self.chosen[parent] = up
            up = parent
        while at in self.chosen:
            at = self.chosen[at]
        self.leaf = at

    @precondition(lambda self: self.leaf is not None)
    @rule()
    def undo(self) -> None:
        assert self.leaf is not None
        self.leaf = self.parents[self.leaf]
        self.store.cut(self.id, self.leaf)

    @rule()
    def write(self) -> None:
        assert self.store.flush()

    @rule()
    def start_again(self) -> None:
        assert self.store.close() is None
        self.store = Conversations(self.store.file)

    @precondition(lambda self: self.parents)
    @rule()
    def move_house(self) -> None:
        """To a file and back: another conversation, the same tree. Which branches were left where
        is not in the file, but on the shown path."""
        text = exporting.as_text(self.store, [self.id], ".json")
        (made,) = importing.import_bytes(self.store, text.encode()).conversations
        again = exporting.as_text(self.store, [made], ".json")
        saved = '"saved": '
        assert [line for line in text.splitlines() if saved not in line] == [
            line for line in again.splitlines() if saved not in line
        ]

    @invariant()
    def shows_one_path(self) -> None:
        path, at = [], self.leaf
        while at is not None:
            path.insert(0, at)
            at = self.parents[at]
        shown = self.store.path(self.id)
        assert [m.id for m in shown] == path
        for message in shown:
            alike = [i for i, p in self.parents.items() if p == self.parents[message.id]]
            assert list(message.siblings) == sorted(alike)
        assert {m.id for m in self.store.every(self.id)} == set(self.parents)


TestTalking = Talking.TestCase
TestTalking.settings = settings(
    max_examples=100 if FULL else 8,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
