"""The tables, and how an older file becomes a file of today.

Ids of conversations and messages grow with the time of their making (`new_id`), so that two
programs on one file never choose the same, and order by id is order by age.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time

from localllm.errors import UnsupportedError

_TABLES = (
    """CREATE TABLE conversations (
        id INTEGER PRIMARY KEY,
        title TEXT NOT NULL DEFAULT '',
        model TEXT NOT NULL DEFAULT '',
        system TEXT,
        params TEXT NOT NULL DEFAULT '{}',
        think TEXT NOT NULL DEFAULT 'null',
        created REAL NOT NULL DEFAULT 0,
        updated REAL NOT NULL DEFAULT 0,
        pinned INTEGER NOT NULL DEFAULT 0,
        deleted_at REAL,
        leaf INTEGER,
        draft TEXT NOT NULL DEFAULT ''
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        conversation INTEGER NOT NULL DEFAULT 0,
        parent INTEGER,
        chosen INTEGER,
        role TEXT NOT NULL DEFAULT 'user',
        content TEXT NOT NULL DEFAULT '',
        reasoning TEXT NOT NULL DEFAULT '',
        model TEXT NOT NULL DEFAULT '',
        finish_reason TEXT,
        stats TEXT NOT NULL DEFAULT '{}',
        attachments TEXT NOT NULL DEFAULT '[]',
        created REAL NOT NULL DEFAULT 0
    )""",
    # The shape of a tree is read from this alone, without its texts.
    "CREATE INDEX messages_tree ON messages(conversation, id, parent, chosen)",
    """CREATE TABLE tags (
        conversation INTEGER NOT NULL,
        tag TEXT NOT NULL,
        PRIMARY KEY (conversation, tag)
    ) WITHOUT ROWID""",
    """CREATE VIRTUAL TABLE words USING fts5(
        content, content='messages', content_rowid='id',
        tokenize='unicode61 remove_diacritics 2'
    )""",
    """CREATE TRIGGER words_in AFTER INSERT ON messages BEGIN
        INSERT INTO words(rowid, content) VALUES (new.id, new.content);
    END""",
    """CREATE TRIGGER words_out AFTER DELETE ON messages BEGIN
        INSERT INTO words(words, rowid, content) VALUES ('delete', old.id, old.content);
    END""",
    """CREATE TRIGGER words_changed AFTER UPDATE OF content ON messages BEGIN
        INSERT INTO words(words, rowid, content) VALUES ('delete', old.id, old.content);
        INSERT INTO words(rowid, content) VALUES (new.id, new.content);
    END""",
)

#: The statements that make a file of version n + 1 out of one of version n.
MIGRATIONS: tuple[tuple[str, ...], ...] = (_TABLES,)

_last_id = 0
_ids = threading.Lock()


def new_id() -> int:
    """Larger than all that this process gave before; milliseconds since 1970, then 20 bits of
    chance."""
    global _last_id
    with _ids:
        made = (time.time_ns() // 1_000_000) << 20 | secrets.randbits(20)
        _last_id = made if made > _last_id else _last_id + 1
        return _last_id


def version_of(connection: sqlite3.Connection) -> int:
    """0: an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Brings a file up to date, wholly or not at all; another program may be at it, too. Raises
    `UnsupportedError` for a file of a newer program, and `sqlite3.Error`."""
    newest = len(MIGRATIONS)
    if version_of(connection) == newest:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)
        if version > newest:
            raise UnsupportedError(
                f"the conversations were kept by a newer localllm: their file has version "
                f"{version}, this program knows up to {newest}",
                "Use that program, or set LOCALLLM_HOME to another folder.",
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
