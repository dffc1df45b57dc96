"""Keeping conversations: what is changed is read at once, and is there for the next program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localllm.errors import ArgumentError
from localllm.tui.conversations.kinds import Attachment, Forgotten
from localllm.tui.conversations.store import Conversations

NASTY = ["[/red]", "[b", "\x1b]0;t\x07", "\u202eabc", "a\0b", "'; DROP TABLE messages", "\ud800x"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Conversations]:
    made = Conversations(tmp_path / "c.sqlite")
    yield made
    made.close()


def _again(store: Conversations) -> Conversations:
    """Another program, after this one has ended."""
    assert store.close() is None
    return Conversations(store.file)


def test_all_that_is_said_is_there_for_the_next_program(store: Conversations) -> None:
    made = store.create(
        model="m:1b", system="Be brief.", params={"temperature": 0.5, "stop": ["a"]}, think="low"
    )
    files = (Attachment("a.py", text="x = 1"), Attachment("p.png", "image", path="/tmp/p.png"))
    question = store.add(made.id, None, "user", "How are you?\n\nWell?", attachments=files)
    answer = store.add(
        made.id, question.id, "assistant", "Fine.", reasoning="Hm.", model="m:1b",
        finish_reason="stop", stats={"decode_tokens": 2},
    )  # fmt: skip
    store.change(made.id, tags=["work", " two  words ", "work"], pinned=True)
    before = store.open(made.id)
    store = _again(store)
    after = store.open(made.id)
    assert after == before
    assert after.messages == (
        type(question)(**{**vars(question), "siblings": (question.id,)}),
        type(answer)(**{**vars(answer), "siblings": (answer.id,)}),
    )
    assert after.messages[0].attachments == files
    kept = after.conversation
    assert (kept.title, kept.model, kept.system) == ("How are you?", "m:1b", "Be brief.")
    assert (kept.params, kept.think) == ({"temperature": 0.5, "stop": ["a"]}, "low")
    assert (kept.tags, kept.pinned, kept.leaf) == (("two words", "work"), True, answer.id)
    store.close()


@pytest.mark.parametrize("written", [True, False])
def test_a_message_that_is_taken_back_is_gone(store: Conversations, written: bool) -> None:
    made = store.create()
    question = store.add(made.id, None, "user", "one")
    answer = store.add(made.id, question.id, "assistant", "", finish_reason="stop")
    empty = store.add(made.id, question.id, "assistant", "never", finish_reason=None)
    if written:
        assert store.flush()
    store.drop(empty.id)
    store.grow(empty.id, "too late")
    for _ in range(2):
        assert [m.id for m in store.every(made.id)] == [question.id, answer.id]
        assert store.path(made.id) == () and not store.search("never") and not store.search("late")
        store.select(made.id, answer.id)
        assert [m.siblings for m in store.path(made.id)] == [(question.id,), (answer.id,)]
        assert store.flush()
        store.cut(made.id, empty.id)
    with pytest.raises(ArgumentError):
        store.open_at(empty.id)


def test_changes_are_read_before_they_are_written_and_after(store: Conversations) -> None:
    first, second = store.create(), store.create()
    store.add(first.id, None, "user", "one")
    store.add(second.id, None, "user", "two")
    for wait in (False, True):
        if wait:
            assert store.flush()
            assert store.unsaved == 0
        assert [c.title for c in store.listed()] == ["two", "one"]
        assert [c.title for c in store.listed("ON")] == ["one"]
    store.change(first.id, pinned=True, title="  A\nname ")
    assert [c.title for c in store.listed()] == ["A name", "two"]
    store.change(second.id, tags=["x"])
    assert [c.id for c in store.listed(tag="x")] == [second.id]
    assert store.tags() == ["x"]
    store.change(second.id, tags=[])
    assert store.tags() == []


def test_a_conversation_without_words_is_not_listed(store: Conversations) -> None:
    made = store.create(model="m")
    for _ in range(2):
        assert store.listed() == []
        assert store.flush()
    store.change(made.id, draft="half a thou")
    assert [c.draft for c in store.listed()] == ["half a thou"]
    assert store.flush()
    assert [c.draft for c in store.listed()] == ["half a thou"]
    store.create(model="m")
    gone = store.create(model="m")
    assert store.flush()
    assert store._reading.conversation(gone.id) is not None
    store.create(model="m")  # not even written
    late = store.create(model="m")
    store.change(late.id, draft="late")
    store = _again(store)
    assert store._reading.conversation(gone.id) is None
    assert len(store._reading._query("SELECT id FROM conversations")) == 2
    store.close()


def test_what_another_programs_conversation_gets_is_listed(store: Conversations) -> None:
    made = store.create()
    store.add(made.id, None, "user", "one")
    assert store.flush()
    other = Conversations(store.file)
    other.delete(made.id)
    assert other.flush()
    assert store.listed() == []
    store.add(made.id, None, "user", "two")
    assert [c.id for c in store.listed()] == [made.id]
    assert store.flush()
    assert other.close() is None
    assert [c.id for c in store.listed()] == [made.id]


def test_edit_keeps_the_old_branch_and_select_walks_between(store: Conversations) -> None:
    made = store.create()
    q1 = store.add(made.id, None, "user", "q1")
    a1 = store.add(made.id, q1.id, "assistant", "a1", finish_reason="stop")
    q2 = store.add(made.id, a1.id, "user", "q2")
    a2 = store.add(made.id, q2.id, "assistant", "a2", finish_reason="stop")
    edited = store.add(made.id, q2.parent, "user", "q2 edited")
    shown = store.open(made.id).messages
    assert [m.content for m in shown] == ["q1", "a1", "q2 edited"]
    assert shown[-1].siblings == (q2.id, edited.id)
    assert shown[-1].place == 1
    store.select(made.id, q2.id)
    assert [m.id for m in store.path(made.id)] == [q1.id, a1.id, q2.id, a2.id]
    store.select(made.id, edited.id)
    assert store.open(made.id).conversation.leaf == edited.id
    root = store.add(made.id, None, "user", "q1 edited")
    assert [m.id for m in store.path(made.id)] == [root.id]
    # Back at the first question, its branch is shown as it was left, by any program.
    for left in (edited, a2):
        store.select(made.id, left.id)
        store.select(made.id, root.id)
        assert store.flush()
        store.select(made.id, q1.id)
        assert store.open(made.id).conversation.leaf == left.id
    assert [m.id for m in store.every(made.id)] == [q1.id, a1.id, q2.id, a2.id, edited.id, root.id]
    with pytest.raises(ArgumentError, match="no message"):
        store.select(made.id, made.id)


def test_undo_ends_the_path_and_keeps_the_rest(store: Conversations) -> None:
    made = store.create()
    q1 = store.add(made.id, None, "user", "q1")
    a1 = store.add(made.id, q1.id, "assistant", "a1", finish_reason="stop")
    store.cut(made.id, q1.id)
    assert [m.content for m in store.path(made.id)] == ["q1"]
    store.cut(made.id, None)
    assert store.path(made.id) == ()
    store.select(made.id, a1.id)
    assert [m.content for m in store.path(made.id)] == ["q1", "a1"]


def test_an_answer_grows_and_ends(store: Conversations) -> None:
    made = store.create()
    question = store.add(made.id, None, "user", "q")
    answer = store.add(made.id, question.id, "assistant", finish_reason=None)
    store.grow(answer.id, "some", "thought")
    shown = store.open(made.id).messages[-1]
    assert (shown.content, shown.reasoning, shown.finish_reason) == ("some", "thought", None)
    store.finish(answer.id, "some text", "thought", finish_reason="stop", stats={"x": 1})
    store = _again(store)
    shown = store.open(made.id).messages[-1]
    assert (shown.content, shown.finish_reason, shown.stats) == ("some text", "stop", {"x": 1})
    store.close()


def test_delete_can_be_undone_until_the_end(store: Conversations) -> None:
    kept, gone = store.create(), store.create()
    store.add(kept.id, None, "user", "kept")
    store.add(gone.id, None, "user", "secret words")
    for undone in (True, False):
        for id in (kept.id, gone.id):
            store.delete(id)
        assert store.listed() == []
        assert store.search("secret") == []
        store.restore(kept.id)
        if undone:
            store.restore(gone.id)
            assert len(store.listed()) == 2
    forgotten: list[Forgotten] = []
    store._forget = forgotten.append
    store = _again(store)
    assert [c.title for c in store.listed()] == ["kept"]
    with pytest.raises(ArgumentError, match="no conversation"):
        store.open(gone.id)
    assert [f.conversation.id for f in forgotten] == [gone.id]
    assert [[m.content for m in b] for b in forgotten[0].branches] == [["secret words"]]
    store.close()
    assert b"secret" not in store.file.read_bytes()


def test_what_was_deleted_long_ago_goes_with_any_program(
    store: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store.create()
    store.add(made.id, None, "user", "one")
    store.delete(made.id)
    assert store.flush()
    Conversations(store.file, forget=lambda gone: None).close()
    store.restore(made.id)
    assert store.flush()
    assert len(store.listed()) == 1
    store.delete(made.id)
    assert store.flush()
    monkeypatch.setattr("localllm.tui.conversations.store.UNDO_S", -1.0)
    Conversations(store.file).close()  # knows of no engine
    assert store._reading.conversation(made.id) is not None
    Conversations(store.file, forget=lambda gone: None).close()
    assert store._reading.conversation(made.id) is None


def test_a_failing_forget_is_noted_and_the_words_go(tmp_path: Path) -> None:
    def refuse(_: Forgotten) -> None:
        raise OSError("no")

    store = Conversations(tmp_path / "c.sqlite", forget=refuse)
    made = store.create()
    store.add(made.id, None, "user", "one")
    store.delete(made.id)
    store = _again(store)
    assert store._reading.conversation(made.id) is None
    store.close()


@pytest.mark.parametrize("text", NASTY)
def test_nasty_strings_are_data(store: Conversations, text: str) -> None:
    kept = text.replace("\ud800", "\ufffd")
    made = store.create(title=text, model=text, system=text, params={"stop": [text]})
    store.add(made.id, None, "user", text, attachments=[Attachment(text, text=text)])
    store.add(made.id, None, "assistant", text, reasoning=text, finish_reason=text)
    store.change(made.id, tags=[text], draft=text)
    for wait in (False, True):
        if wait:
            assert store.flush()
        opened = store.open(made.id)
        message = opened.messages[0]
        assert (message.content, message.reasoning, message.finish_reason) == (kept,) * 3
        found = opened.conversation
        assert (found.title, found.model, found.system, found.draft) == (kept,) * 4
        assert found.tags == (kept,)
        assert found.params == {"stop": [kept]}
        assert store.listed(text)
    assert store.trouble is None


def test_a_long_history_is_read_by_pages(store: Conversations) -> None:
    made = store.create()
    parent = None
    ids = []
    for n in range(500):
        role = "assistant" if n % 2 else "user"
        parent = store.add(made.id, parent, role, f"text {n}", finish_reason="stop").id
        ids.append(parent)
    assert store.flush()
    before = store.n_queries
    opened = store.open(made.id, 40)
    assert store.n_queries - before == 4  # the conversation, its tags, the tree, one page
    assert [m.id for m in opened.messages] == ids[460:]
    assert opened.n_earlier == 460
    before = store.n_queries
    earlier = store.earlier(made.id, opened.messages[0].id, 40)
    assert store.n_queries - before <= 4
    assert [m.id for m in earlier] == ids[420:460]
    assert [m.id for m in store.earlier(made.id, ids[5], 40)] == ids[:5]
    assert store.earlier(made.id, ids[0], 40) == ()
    there = store.open_at(ids[100], 40)
    assert [m.id for m in there.messages] == ids[90:]
    assert [m.id for m in store.path(made.id)] == ids


def test_open_at_shows_the_branch_of_the_message(store: Conversations) -> None:
    made = store.create()
    old = store.add(made.id, None, "user", "old")
    new = store.add(made.id, None, "user", "new")
    assert store.open_at(old.id).messages[0].id == old.id
    assert store.open(made.id).messages[0].id == old.id
    assert store.open_at(new.id).messages[0].id == new.id
    with pytest.raises(ArgumentError, match="no message"):
        store.open_at(5)


def test_only_its_owner_can_read_the_file(store: Conversations) -> None:
    made = store.create()
    store.add(made.id, None, "user", "one")
    assert store.flush()
    if os.name == "nt":
        pytest.skip("modes are POSIX's")
    for file in store.file.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    assert {f.name for f in store.file.parent.iterdir()} > {"c.sqlite-wal"}
    store.file.chmod(0o644)
    again = Conversations(store.file)
    assert again.listed()
    assert store.file.stat().st_mode & 0o777 == 0o600
    again.close()


@pytest.mark.parametrize("name", ["a?b%20#c", "mode=ro&x", "é \u202e", "b\udcff"])
def test_any_folder_will_do(tmp_path: Path, name: str) -> None:
    store = Conversations(tmp_path / name / "c.sqlite")
    store.add(store.create(title="t").id, None, "user", "x")
    assert store.flush()
    assert [c.title for c in store.listed()] == ["t"]
    assert (tmp_path / name / "c.sqlite").exists()
    store.close()


def test_wrong_fields_and_roles_are_refused(store: Conversations) -> None:
    made = store.create()
    with pytest.raises(ArgumentError, match="'created'"):
        store.change(made.id, created=1)
    with pytest.raises(ArgumentError, match="'banana'"):
        store.add(made.id, None, "banana", "x")


def test_what_is_said_in_a_conversation_that_is_gone_is_its_path(store: Conversations) -> None:
    """Also where question and answer are written together."""
    made = store.create(title="t")
    store.add(made.id, None, "user", "before")
    assert store.flush()
    other = Conversations(store.file)
    other.delete(made.id)
    assert other.close() is None
    with store._writer.lock:  # nothing is written meanwhile
        question = store.add(made.id, None, "user", "one")
        store.add(made.id, question.id, "assistant", "two", finish_reason="stop")
    assert store.flush()
    assert [message.content for message in store.path(made.id)] == ["one", "two"]
