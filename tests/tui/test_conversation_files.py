"""Conversations to files and back, and out of other programs' files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localllm.errors import ArgumentError, FileError, FormatError
from localllm.tui.conversations import exporting, importing
from localllm.tui.conversations.kinds import Attachment
from localllm.tui.conversations.store import Conversations

NASTY = "[/red] \x1b]0;t\x07 \u202eabc a\0b '; DROP"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Conversations]:
    made = Conversations(tmp_path / "c.sqlite")
    yield made
    made.close()


def _talk(store: Conversations) -> int:
    made = store.create(title="A talk", model="m:1b", system="Be brief.", params={"top_k": 3})
    store.change(made.id, tags=["x"], pinned=True, draft="next")
    files = [Attachment("a.py", text="x = '```'\n"), Attachment("p.png", "image", path="/p.png")]
    question = store.add(made.id, None, "user", f"How?\n{NASTY}", attachments=files)
    store.add(
        made.id, question.id, "assistant", "So.", reasoning="Hm.\n\nYes.", model="other",
        finish_reason="length", stats={"decode_s": 0.5},
    )  # fmt: skip
    store.add(made.id, question.id, "assistant", "Thus.", model="m:1b", finish_reason="stop")
    return made.id


def _shape(store: Conversations, id: int) -> list[dict[str, Any]]:
    """All but ids."""
    ids = {m.id: n for n, m in enumerate(store.every(id))}
    opened = store.open(id).conversation
    whole = [{**vars(opened), "id": 0, "leaf": ids.get(opened.leaf or 0)}]
    for message in store.every(id):
        renamed = {"id": ids[message.id], "parent": ids.get(message.parent or 0), "conversation": 0}
        siblings = [ids[each] for each in message.siblings]
        whole.append({**vars(message), **renamed, "siblings": siblings})
    return whole


def _read_back(store: Conversations, id: int) -> list[dict[str, Any]]:
    """As `_shape`, without the paths of pictures."""
    whole = _shape(store, id)
    for each in whole[1:]:
        each["attachments"] = tuple(a for a in each["attachments"] if a.kind == "text")
    return whole


def test_json_is_read_back_whole(store: Conversations, tmp_path: Path) -> None:
    id = _talk(store)
    first = store.every(id)[1]
    store.select(id, first.id)
    path = exporting.export(store, [id], tmp_path / "out.json")
    if os.name != "nt":
        assert path.stat().st_mode & 0o777 == 0o600
    found = importing.import_file(store, path)
    assert found.notes == ["left out: 1 pictures"]  # a file does not say what of the disk is read
    (made,) = found.conversations
    assert made != id
    assert _shape(store, made) == _read_back(store, id)
    assert store.flush()
    assert _shape(store, made) == _read_back(store, id)


def test_several_go_into_one_file(store: Conversations, tmp_path: Path) -> None:
    ids = [_talk(store), _talk(store)]
    store.cut(ids[1], None)
    path = exporting.export(store, ids, tmp_path / "out")
    assert path.name == "out.json"
    made = importing.import_file(store, path).conversations
    assert [_shape(store, id) for id in made] == [_read_back(store, id) for id in ids]


def test_markdown_reads_well(store: Conversations, tmp_path: Path) -> None:
    id = _talk(store)
    store.select(id, store.every(id)[1].id)
    text = exporting.export(store, [id], tmp_path / "out.md").read_text(encoding="utf-8")
    assert text.startswith("# A talk\n\n*with m:1b, begun 20")
    assert "## System\n\nBe brief.\n\n## Question\n\n*Attached: a.py*\n\n````\nx = '```'\n" in text
    assert "*Attached: p.png*" in text
    assert text.endswith(
        f"How?\n{NASTY}\n\n## Answer (other)\n\n> *Reasoning*\n>\n> Hm.\n>\n> Yes.\n\nSo.\n"
    )


def test_names_of_files() -> None:
    from localllm.tui.conversations.kinds import Conversation

    def name(title: str) -> str:
        return exporting.file_name(Conversation(7, title), ".md")

    assert name("How do I: sort/merge?") == "conversation-how-do-i-sort-merge.md"
    assert name("../..") == name("\x1b") == name("CON"[3:]) == "conversation-7.md"
    assert len(name("x" * 300)) < 90
    assert name("日本語") == "conversation-日本語.md"


def test_what_cannot_be_written_is_said(store: Conversations, tmp_path: Path) -> None:
    id = _talk(store)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none" / "x.json", tmp_path / "file" / "x.json"):
        with pytest.raises(FileError, match="cannot write"):
            exporting.export(store, [id], path)
    with pytest.raises(ArgumentError, match="no conversation 5"):
        exporting.export(store, [5], tmp_path / "x.json")
    with pytest.raises(ArgumentError, match="names no file"):
        exporting.export(store, [id], Path("a\0b"))
    assert not list(tmp_path.glob("x.json*"))


def _import(store: Conversations, data: Any) -> tuple[list[int], list[str]]:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    found = importing.import_bytes(store, text)
    return found.conversations, found.notes


def _said(store: Conversations, id: int) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in store.path(id)]


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Fine."},
]


@pytest.mark.parametrize(
    "data",
    [
        TALK,
        {"messages": TALK, "model": "m", "temperature": 1},
        [{"messages": TALK}],
        json.dumps({"messages": TALK}).encode() + b"\n" + json.dumps({"messages": TALK}).encode(),
        b"\xef\xbb\xbf" + json.dumps(TALK).encode(),
    ],
)
def test_lists_of_messages(store: Conversations, data: Any) -> None:
    made, notes = _import(store, data)
    opened = store.open(made[0])
    assert _said(store, made[0]) == [("user", "How are you?"), ("assistant", "Fine.")]
    assert opened.conversation.system == "Be brief."
    assert opened.conversation.title == "How are you?"
    assert opened.messages[1].finish_reason == "stop"
    assert notes == []


def test_what_run_saves(store: Conversations, tmp_path: Path) -> None:
    from localllm.cli.repl.saved import Saved, save

    messages = [
        {"role": "user", "content": "q", "images": ["/tmp/p.png"]},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "finish_reason": "length"},
    ]
    saved = Saved("m:1b", None, "S", "low", {"top_k": 3, "stop": ["x"]}, messages)
    save(tmp_path / "s.json", saved)
    found = importing.import_file(store, tmp_path / "s.json")
    assert found.notes == ["left out: 1 pictures"]
    (made,) = found.conversations
    opened = store.open(made)
    kept = opened.conversation
    assert (kept.model, kept.system, kept.think) == ("m:1b", "S", "low")
    assert kept.params == {"top_k": 3, "stop": ["x"]}
    assert opened.messages[0].attachments == ()
    assert (opened.messages[1].reasoning, opened.messages[1].finish_reason) == ("r", "length")


def test_parts_tools_and_pictures(store: Conversations) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    made, notes = _import(
        store,
        [
            {"role": "developer", "content": "D"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42"},
            {"role": "assistant", "content": "b", "thinking": "t", "images": ["aGVsbG8="]},
            {"role": "system", "content": "mid"},
        ],
    )
    assert _said(store, made[0]) == [("user", "a"), ("assistant", "b"), ("system", "mid")]
    assert store.path(made[0])[1].reasoning == "t"
    assert set(notes) == {
        "left out: 1 parts that are no text",
        "left out: 1 calls of tools",
        "left out: 1 messages of tools",
        "left out: 1 pictures",
    }


@pytest.mark.parametrize(
    "moment", [10**400, -1, 1e300, "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", True]
)
def test_a_moment_that_is_none_is_now(store: Conversations, moment: Any) -> None:
    (made,), _ = _import(
        store, {"created_at": moment, "messages": [{"role": "user", "content": "q"}]}
    )
    assert abs(store.open(made).conversation.updated - time.time()) < 600


def test_one_stop_string_is_one(store: Conversations, tmp_path: Path) -> None:
    path = exporting.export(store, [_talk(store)], tmp_path / "out.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    data["conversations"][0]["params"] = {"stop": "abc"}
    (made,), _ = _import(store, data)
    assert store.open(made).conversation.params == {"stop": ["abc"]}


def _node(parent: str | None, role: str = "", text: str = "", **more: Any) -> dict[str, Any]:
    message = None
    if role:
        content = {"content_type": "text", "parts": [text]}
        message = {"author": {"role": role}, "content": content, "create_time": 1.5e9, **more}
    return {"parent": parent, "message": message}


def test_a_chatgpt_export_keeps_its_tree(store: Conversations) -> None:
    mapping = {
        "late": _node("q", "assistant", "a2", metadata={"model_slug": "gpt-x"}),
        "root": _node(None),
        "sys": _node("root", "system", ""),
        "q": _node("sys", "user", "q1"),
        "a": _node("q", "assistant", "a1"),
        "hidden": _node(
            "a", "system", "x", metadata={"is_visually_hidden_from_conversation": True}
        ),
        "tool": _node("hidden", "tool", "42"),
        "q2": _node("tool", "user", "q2"),
        "circle": _node("circle", "user", "never"),
    }
    data = {"title": "T", "create_time": 1.4e9, "mapping": mapping, "current_node": "late"}
    made, notes = _import(store, [data])
    opened = store.open(made[0])
    assert _said(store, made[0]) == [("user", "q1"), ("assistant", "a2")]
    assert (opened.conversation.title, opened.conversation.created) == ("T", 1.4e9)
    assert opened.messages[1].model == "gpt-x"
    assert len(opened.messages[1].siblings) == 2
    assert sorted(m.content for m in store.every(made[0])) == ["a1", "a2", "q1", "q2"]
    store.select(made[0], opened.messages[1].siblings[0])
    store.select(made[0], opened.messages[1].siblings[1])
    assert notes == ["left out: 2 messages of tools or not shown"]
    assert not any("never" in m.content for m in store.every(made[0]))


def test_a_tree_of_ten_thousand_is_no_recursion(store: Conversations) -> None:
    mapping = {str(n): _node(str(n - 1) if n else None, "user", f"t{n}") for n in range(10_000)}
    made, _ = _import(store, [{"mapping": mapping, "current_node": "9999"}])
    opened = store.open(made[0])
    assert opened.n_earlier == 10_000 - len(opened.messages)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"3",
        b"null",
        b"[]",
        b"[3]",
        b"{}",
        b'{"messages": 3}',
        b'{"messages": []}',
        b'{"messages": [{"role": "user", "content": 3}]}',
        b'{"messages": [{"content": "x"}]}',
        b'{"mapping": {"a": 3}}',
        b'[{"role": "user", "content": "x"}, 3]',
        b'{"format": "localllm conversations", "version": 99, "conversations": []}',
        b'{"format": "localllm conversations", "version": 1, "conversations": [{}]}',
    ],
)
def test_what_is_no_conversation_adds_nothing(store: Conversations, data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        _import(store, data)
    assert len(caught.value.message) < 300
    assert store.listed() == []


def test_damage_in_our_own_file_adds_nothing(store: Conversations) -> None:
    text = exporting.as_text(store, [_talk(store)], ".json")
    whole = json.loads(text)
    n = len(store.listed())
    for change in (
        {"parent": 3},
        {"parent": "1"},
        {"id": 7},
        {"role": "banana"},
        {"content": None},
        {"stats": 3},
        {"attachments": [3]},
    ):
        damaged = json.loads(text)
        damaged["conversations"][0]["messages"][1].update(change)
        with pytest.raises(FormatError):
            _import(store, damaged)
    for change in ({"params": {"top_k": -1}}, {"think": "banana"}, {"tags": [3]}, {"leaf": 9},
                   {"leaf": []}, {"title": 3}):  # fmt: skip
        damaged = json.loads(text)
        damaged["conversations"][0].update(change)
        with pytest.raises(FormatError):
            _import(store, damaged)
    assert len(store.listed()) == n
    assert len(_import(store, whole)[0]) == 1


def test_moments_of_every_kind() -> None:
    assert importing._moment(1.5e9) == 1.5e9
    assert importing._moment("2017-07-14T02:40:00Z") == 1.5e9
    assert importing._moment("2017-07-14T02:40:00.1234567+00:00") == 1_500_000_000.123
    for value in (None, True, -1, 1e300, float("nan"), "yesterday", [], "9999-99-99"):
        assert importing._moment(value) > 1.7e9


def test_files_that_cannot_be_read(store: Conversations, tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("a\0b")):
        with pytest.raises(FileError, match="cannot read"):
            importing.import_file(store, path)
    (tmp_path / "x.json").write_bytes(b"{")
    with pytest.raises(FormatError, match=r"x\.json: these are no conversations"):
        importing.import_file(store, tmp_path / "x.json")
