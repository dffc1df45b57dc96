"""What the chat says when its conversations cannot be kept."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from tui.driving import Driven, drive

from localllm.tui.app import ChatApp
from localllm.tui.conversations import database, unwritten
from localllm.tui.widgets.message import MessageView


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    monkeypatch.setattr("localllm.tui.conversations.writer.RETRY_S", 0.05)


def test_a_locked_file_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("before")
        assert d.store.flush()
        holder = sqlite3.connect(d.store.file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        await d.ask("while it is locked")
        await d.until(lambda: "What is new stays here" in d.notices)
        await d.until(lambda: "not saved yet" in d.text)
        assert d.contents[2] == "while it is locked"
        holder.close()
        await d.until(lambda: "not saved yet" not in d.text)
        assert d.store.unsaved == 0

    drive(body, tmp_path, size=(100, 40))


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("before")
        assert d.store.flush()
        for suffix in ("", "-wal", "-shm"):
            d.store.file.with_name(d.store.file.name + suffix).unlink()
        d.store.file.write_bytes(b"no database" * 999)
        await d.type("after")
        await d.press("enter")
        await d.until(lambda: "of conversations was damaged" in d.notices and d.idle)
        assert d.contents == ["after", "An answer."]  # the rest is in the file that was put aside

    drive(body, tmp_path, size=(100, 40))


def test_a_removed_file_is_said(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.type("/set temperature 0.25")
        await d.press("enter")
        await d.ask("before")
        assert d.store.flush()
        for suffix in ("", "-wal", "-shm"):
            d.store.file.with_name(d.store.file.name + suffix).unlink()
        await d.type("after")
        await d.press("enter")
        await d.until(lambda: d.idle and d.contents == ["after", "An answer."])
        await d.until(lambda: "was removed, and a new one was begun" in d.notices)
        assert [v.message.content for v in d.chat.transcript.views] == d.contents
        kept = d.chat.renew()
        assert kept.title == "before" and kept.params == {"temperature": 0.25}
        assert d.store.flush() and d.store.listed() == [kept]

    drive(body, tmp_path, size=(100, 40))


def test_what_is_asked_while_a_new_file_is_begun_stays_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate, write = threading.Event(), threading.Event(), unwritten.write

    def slowly(connection: sqlite3.Connection, batch: unwritten.Batch) -> None:
        begun.set()
        gate.wait()
        write(connection, batch)

    async def body(d: Driven) -> None:
        await d.ask("before")
        assert d.store.flush()
        for suffix in ("", "-wal", "-shm"):
            d.store.file.with_name(d.store.file.name + suffix).unlink()
        monkeypatch.setattr("localllm.tui.conversations.writer.write", slowly)
        try:
            question = d.store.add(d.path[0].conversation, d.path[-1].id, "user", "after")
            assert begun.wait(30)
            d.chat.transcript.mount(MessageView(question))
            d.chat.renew()  # finds neither the old file nor what is new
            assert [view.message for view in d.chat.transcript.views] == [question]
            await d.until(lambda: "was removed, and a new one was begun" in d.notices)
            assert [view.message.id for view in d.chat.transcript.views] == [question.id]
        finally:
            gate.set()

    drive(body, tmp_path)


def test_a_note_on_the_file_stays_where_a_first_question_follows(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        d.store._writer.note("the file is a new one")
        d.chat.say_line("something else")
        await d.until(lambda: "a new one" in d.text and "something else" in d.text)
        await d.ask("x")
        await d.until(lambda: "something else" not in d.text)
        assert "a new one" in d.text
        d.chat.transcript.clear(())
        await d.until(lambda: not d.chat.transcript.views)
        assert "a new one" in d.text

    drive(body, tmp_path, size=(100, 40))


def test_the_reason_comes_before_the_path(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        assert d.store.flush()
        long = "/tmp/" + "folder/" * 20
        d.store.file = Path(long + "conversations.sqlite")
        d.store._writer.trouble = database.error_of(
            sqlite3.OperationalError("database is locked"), d.store.file
        )
        d.chat.on_chat_app_loading(ChatApp.Loading(long + "model.gguf", 0.5))
        await d.until(lambda: "loading model.gguf  50%" in d.text)
        await d.until(lambda: "another program holds the conversations lock" in d.text)
        d.store._writer.trouble = None

    drive(body, tmp_path, size=(120, 40))


def test_what_is_said_after_the_end_says_nothing_of_here() -> None:
    for text in ("database is locked", "disk is full", "readonly", "malformed"):
        error = database.error_of(sqlite3.OperationalError(text), Path("x"))
        assert error.hint and "stays here" not in error.hint
