"""Faults under the conversations: kills, locks, full disks, files that are damaged, read-only or of
a newer program. Nothing that was typed is lost, and the trouble has words."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins.conditions import wait

from localllm.errors import FileError, FormatError, UnsupportedError
from localllm.tui.conversations import database, exporting, importing, schema
from localllm.tui.conversations.store import Conversations

CHILD = Path(__file__).with_name("conversation_child.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.sqlite"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    monkeypatch.setattr("localllm.tui.conversations.writer.RETRY_S", 0.05)


@pytest.fixture
def store(path: Path) -> Iterator[Conversations]:
    made = Conversations(path)
    assert made.flush()
    yield made
    made.close()


def child(path: Path, what: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(CHILD), str(path), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("lines", [1, 60, 150])
def test_a_kill_loses_at_most_a_second(path: Path, full: bool, lines: int) -> None:
    """The clock is held to it in the long form; here, that an answer is written while it grows."""
    program = child(path, "growing")
    assert program.stdout is not None
    handed = [_handed(program.stdout.readline()) for _ in range(lines)]
    if not full:
        watcher = Conversations(path)
        wait(lambda: _kept(watcher) > handed[-1][0])
        watcher.close()
    program.kill()
    killed = time.time()
    program.wait()
    handed += [_handed(line) for line in program.stdout if line.endswith("\n")]
    program.stdout.close()
    store = Conversations(path)
    opened = store.open(store.listed()[0].id)
    assert opened.messages[0].content == "a question"
    assert opened.messages[1].finish_reason is None
    kept = _kept(store)
    assert opened.messages[1].content == "".join(f"w{n} " for n in range(kept))
    if full:
        assert kept >= len([n for n, when in handed if when < killed - 1.0])
    else:
        assert kept >= lines
    assert store.search("question")
    assert store.trouble is None
    store.close()


def _handed(line: str) -> tuple[int, float]:
    n, when = line.split()
    return int(n), float(when)


def _kept(store: Conversations) -> int:
    """How many words of the answer are on the disk."""
    found = store.listed()
    messages = store.open(found[0].id).messages if found else ()
    return len(messages[1].content.split()) if len(messages) > 1 else 0


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_what_was_sent_survives_a_kill_at_once(path: Path) -> None:
    program = child(path, "once")
    assert program.stdout is not None
    assert program.stdout.readline() == "True\n"
    program.kill()
    program.wait()
    program.stdout.close()
    store = Conversations(path)
    assert [m.content for m in store.path(store.listed()[0].id)] == ["a question"]
    store.close()


def test_two_programs_write_at_once(path: Path) -> None:
    programs = [child(path, "100") for _ in range(2)]
    mine = Conversations(path)
    made = mine.create(title="mine")
    for n in range(100):
        mine.add(made.id, None, "user", f"{made.id} {n}")
    for program in programs:
        assert program.communicate()[0] == "None\n"
    assert mine.flush(20)
    found = mine.listed()
    assert len(found) == 3
    for each in found:
        contents = [m.content for m in mine.every(each.id)]
        assert contents == [f"{each.id} {n}" for n in range(100)]
    version = mine.version()
    other = Conversations(path)
    other.change(made.id, title="theirs")
    assert other.flush()
    assert mine.version() != version
    assert mine.listed()[0].title or True
    assert {c.title for c in mine.listed()} == {"theirs", "100"}
    other.close()
    assert mine.close() is None


def test_a_locked_file_keeps_all_in_memory(store: Conversations, path: Path) -> None:
    made = store.create(title="t")
    first = store.add(made.id, None, "user", "before")
    assert store.flush()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    second = store.add(made.id, first.id, "user", "while locked")
    store.change(made.id, draft="typed", title="other")
    wait(lambda: store.trouble is not None)
    assert isinstance(store.trouble, FileError)
    assert "locked" in store.trouble.message
    assert store.trouble.hint
    assert not store.flush(0.1)
    assert store.unsaved == 3  # both messages (the first has a new chosen child), and the rest
    opened = store.open(made.id)
    assert [m.content for m in opened.messages] == ["before", "while locked"]
    assert (opened.conversation.draft, opened.conversation.title) == ("typed", "other")
    assert [h.message for h in store.search("while")] == [second.id]
    holder.execute("ROLLBACK")
    holder.close()
    assert store.flush()
    assert store.trouble is None
    again = Conversations(path)
    assert [m.content for m in again.path(made.id)] == ["before", "while locked"]
    again.close()


def test_a_file_locked_from_the_start(path: Path) -> None:
    Conversations(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    told = threading.Event()
    store = Conversations(path, changed=told.set)
    made = store.create(title="t")
    store.add(made.id, None, "user", "x")
    assert told.wait(20)
    assert store.trouble is not None
    assert [c.title for c in store.listed()] == ["t"]
    before = store.n_queries
    for _ in range(20):
        assert [m.content for m in store.path(made.id)] == ["x"]
    assert store.n_queries - before <= 20  # of 60: it is not asked while it cannot answer
    told.clear()
    holder.close()
    assert told.wait(20)
    assert store.flush()
    assert store.close() is None


def test_a_full_disk_loses_nothing(store: Conversations) -> None:
    """SQLite's own limit of pages has the same error as a disk that is full."""
    connection = store._writer._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    made = store.create(title="t")
    words = "a long text " * 10_000
    message = store.add(made.id, None, "user", words)
    wait(lambda: store.trouble is not None)
    assert store.trouble is not None
    assert "full" in store.trouble.message
    assert store.open(made.id).messages[0].content == words
    assert len(store.search("long")) == 1
    store.change(made.id, title="later")
    connection.execute("PRAGMA max_page_count = 1000000")
    assert store.flush()
    assert store.trouble is None
    assert store.open(made.id).messages[0].id == message.id
    assert [c.title for c in Conversations(store.file).listed()] == ["later"]


def test_closing_says_what_was_not_saved(store: Conversations, path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store.add(store.create(title="t").id, None, "user", "x")
    error = store.close()
    assert error is not None
    assert "locked" in error.message
    assert store.unsaved == 2
    (path.parent / "file").write_text("")
    folders = [path.parent / "file", path.parent / "none", path.parent]
    kept = exporting.rescue(store, folders)
    assert kept is not None
    holder.close()
    again = Conversations(path)
    assert again.listed() == []
    importing.import_file(again, kept)
    assert [c.title for c in again.listed()] == ["t"]
    assert again.flush()
    assert exporting.rescue(again, folders) is None
    again.close()


def test_a_damaged_file_is_put_aside(path: Path) -> None:
    for n, damage in enumerate(
        (b"no database at all" * 500, b"SQLite format 3\0" + b"\xff" * 9000)
    ):
        path.write_bytes(damage)
        told = threading.Event()
        store = Conversations(path, changed=told.set)
        assert store.listed() == []
        assert told.wait(20)
        assert "damaged" in store.notes[0]
        aside = sorted(path.parent.glob("c.sqlite.damaged-*"))
        assert len(aside) == n + 1
        assert any(file.read_bytes() == damage for file in aside)
        made = store.create(title="t")
        store.add(made.id, None, "user", "x")
        assert store.flush()
        assert store.trouble is None
        store.close()
        again = Conversations(path)
        assert again.listed()
        assert again.notes == ()
        again.close()


def test_damage_inside_is_found_at_the_start(store: Conversations, path: Path) -> None:
    made = store.create(title="t")
    for n in range(50):
        store.add(made.id, None, "user", f"{n} " * 500)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3 // 4096 * 4096)
        file.write(b"\xa5" * (size // 3))
    again = Conversations(path)
    assert again.listed() == []
    assert "put aside" in again.notes[0]
    assert again.trouble is None
    again.close()


def test_a_newer_version_is_refused_and_left_alone(store: Conversations, path: Path) -> None:
    store.add(store.create(title="t").id, None, "user", "x")
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.close()
    before = path.read_bytes()
    again = Conversations(path)
    assert again.listed() == []
    wait(lambda: again.trouble is not None)
    assert isinstance(again.trouble, UnsupportedError)
    assert "newer localllm" in again.trouble.message
    made = again.create(title="here")
    again.add(made.id, None, "user", "only in memory")
    assert [m.content for m in again.path(made.id)] == ["only in memory"]
    assert [c.title for c in again.listed()] == ["here"]
    assert len(again.search("memory")) == 1
    assert again.close() is again.trouble
    assert path.read_bytes() == before


def test_an_older_version_is_brought_up_to_date(
    store: Conversations, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store.create(title="t")
    store.add(made.id, None, "user", "x")
    store.close()
    step = ("ALTER TABLE conversations ADD COLUMN colour TEXT", "CREATE TABLE more (id INTEGER)")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
    stores = [Conversations(path) for _ in range(3)]  # all at once
    for each in stores:
        assert each.flush()
        assert [c.title for c in each.listed()] == ["t"]
        assert each.trouble is None
        each.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_migration_that_fails_changes_nothing(
    store: Conversations, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(store.create(title="t").id, None, "user", "x")
    store.close()
    step = ("CREATE TABLE more (id INTEGER)", "ALTER TABLE nothing ADD COLUMN colour TEXT")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
        again = Conversations(path)
        wait(lambda: again.trouble is not None)
        again.close()
    last = Conversations(path)
    assert [c.title for c in last.listed()] == ["t"]
    assert last.flush()
    assert last.trouble is None
    last.close()


def test_a_file_that_is_removed_is_begun_anew(store: Conversations, path: Path) -> None:
    made = store.create(title="t")
    message = store.add(made.id, None, "user", "one")
    assert store.flush()
    for file in path.parent.iterdir():
        file.unlink()
    store.add(made.id, message.id, "user", "two")
    assert store.flush()
    assert path.exists()
    assert [m.content for m in store.every(made.id)] == ["two"]
    assert store.listed()[0].id == made.id


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="needs another user")
def test_a_read_only_file_says_so(path: Path) -> None:
    """As another user, who may read the folder but not write."""
    store = Conversations(path)
    store.add(store.create(title="t").id, None, "user", "x")
    store.close()
    script = (
        "import os, sys, pathlib\n"
        "from localllm.tui.conversations.store import Conversations\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "store = Conversations(path)\n"
        "made = store.create(title='new')\n"
        "store.add(made.id, None, 'user', 'kept in memory')\n"
        "store.flush(1)\n"
        "print(store.trouble)\n"
        "print(sorted(c.title for c in store.listed()))\n"
        "print([m.content for m in store.path(made.id)], store.unsaved)\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n"
    )
    folder = Path("/tmp") / f"localllm-read-only-{os.getpid()}"
    shutil.copytree(path.parent, folder)
    folder.chmod(0o755)
    (folder / path.name).chmod(0o644)
    try:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        said = subprocess.run(
            [sys.executable, "-c", script, str(folder / path.name)],
            capture_output=True, text=True, env=env, timeout=60,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)
    lines = said.stdout.splitlines()
    assert "cannot be written" in lines[0], said
    assert lines[1] == "['new', 't']"
    assert lines[2] == "['kept in memory'] 2"


def test_words_for_every_error() -> None:
    path = Path("/x/c.sqlite")
    for text, kind, words in (
        ("database is locked", FileError, "locked"),
        ("database or disk is full", FileError, "disk is full"),
        ("attempt to write a readonly database", FileError, "cannot be written"),
        ("unable to open database file", FileError, "cannot be written"),
        ("file is not a database", FormatError, "damaged"),
        ("no such module: fts5", UnsupportedError, "full-text"),
        ("disk I/O error", FileError, "disk I/O error"),
    ):
        error = database.error_of(sqlite3.OperationalError(text), path)
        assert type(error) is kind
        assert words in error.message
