"""What is not on the disk yet: new values of columns, by row. It is what a thread writes, and what
a reader lays over what it finds on the disk, so a change counts at once and is lost by no fault."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Rows = dict[int, Row]

TABLES = ("conversations", "messages")
#: A row that holds this column is whole: it may be inserted.
_WHOLE = {"conversations": "created", "messages": "role"}
DROPPED = "dropped"
"""The mark of a message that is to be deleted; no column."""


@dataclass
class Batch:
    """New values by table and id; `tags` among those of conversations is a table of its own."""

    rows: dict[str, Rows] = field(default_factory=lambda: {table: {} for table in TABLES})
    purged: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(self.rows.values()) or bool(self.purged)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))


class Unwritten:
    """Not locked: its owner is. At most one batch is being written."""

    def __init__(self) -> None:
        self._new = Batch()
        self._taken = Batch()

    def __bool__(self) -> bool:
        return bool(self._new) or bool(self._taken)

    def __len__(self) -> int:
        return sum(len({*self._new.rows[t], *self._taken.rows[t]}) for t in TABLES)

    def put(self, table: str, id: int, values: Mapping[str, Any]) -> None:
        """Sets columns of a row."""
        self._new.rows[table].setdefault(id, {}).update(values)

    def purge(self, conversation: int) -> None:
        """Deletes a conversation and its messages."""
        self._new.purged.append(conversation)

    def take(self) -> Batch:
        """All that is to be written, until `written` or `failed`."""
        self._taken, self._new = self._new, Batch()
        return self._taken

    def written(self) -> None:
        """What was taken is on the disk."""
        self._taken = Batch()

    def failed(self) -> None:
        """What was taken is to be written again, where nothing newer came."""
        taken, newer = self._taken, self._new
        self._new, self._taken = taken, Batch()
        for table in TABLES:
            for id, values in newer.rows[table].items():
                self.put(table, id, values)
        self._new.purged += newer.purged

    def of(self, table: str, id: int) -> Row:
        """The columns of a row that are newer than the disk."""
        return {**self._taken.rows[table].get(id, {}), **self._new.rows[table].get(id, {})}

    def rows(self, table: str) -> Iterator[tuple[int, Row]]:
        """All rows of which something is newer than the disk."""
        for id in {**self._taken.rows[table], **self._new.rows[table]}:
            yield id, self.of(table, id)


def clean(text: str) -> str:
    """What no character is (a lone surrogate) cannot be stored; U+FFFD takes its place."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def column(value: Any) -> Any:
    """A value as SQLite stores it."""
    if isinstance(value, str):
        return clean(value)
    return value


def as_json(value: Any) -> str:
    """Plain data as a column of text."""
    return clean(json.dumps(value, ensure_ascii=False))


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """Writes all of a batch or nothing. Raises `sqlite3.Error`."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for id, values in sorted(batch.rows["conversations"].items()):
            _write_row(connection, "conversations", id, values)
        for id, values in sorted(batch.rows["messages"].items()):
            if DROPPED in values:
                connection.execute("DELETE FROM messages WHERE id = ?", (id,))
                continue
            _write_row(connection, "messages", id, values)
            if "role" in values and _ensure_conversation(connection, id, values):
                of = values["conversation"]
                _write_row(connection, "conversations", of, batch.rows["conversations"].get(of, {}))
        for id in batch.purged:
            connection.execute("DELETE FROM messages WHERE conversation = ?", (id,))
            connection.execute("DELETE FROM tags WHERE conversation = ?", (id,))
            connection.execute("DELETE FROM conversations WHERE id = ?", (id,))
        if batch.purged:  # deleted words stay in the index until its parts are merged
            connection.execute("INSERT INTO words(words) VALUES ('optimize')")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors, a full disk among them, end it themselves
            connection.execute("ROLLBACK")
        raise


def _write_row(connection: sqlite3.Connection, table: str, id: int, values: Row) -> None:
    values = dict(values)
    if "tags" in values:
        connection.execute("DELETE FROM tags WHERE conversation = ?", (id,))
        pairs = [(id, tag) for tag in values.pop("tags")]
        connection.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", pairs)
    if not values:
        return
    names, data = list(values), [column(value) for value in values.values()]
    if _WHOLE[table] in values:
        sets = ", ".join(f"{name} = excluded.{name}" for name in names)
        connection.execute(
            f"INSERT INTO {table} (id, {', '.join(names)}) "
            f"VALUES (?{', ?' * len(names)}) ON CONFLICT(id) DO UPDATE SET {sets}",
            [id, *data],
        )
    else:
        sets = ", ".join(f"{name} = ?" for name in names)
        connection.execute(f"UPDATE {table} SET {sets} WHERE id = ?", [*data, id])


def _ensure_conversation(connection: sqlite3.Connection, id: int, values: Row) -> bool:
    """Another program may have deleted it for good; what is said in it now is kept nevertheless.
    Whether it was not there: what was written of it before found no row."""
    cursor = connection.execute(
        "INSERT INTO conversations (id, title, model, created, updated, leaf) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO NOTHING",
        (
            values["conversation"],
            clean(values.get("content", ""))[:60],
            clean(values.get("model", "")),
            values.get("created", 0),
            values.get("created", 0),
            id,
        ),
    )
    return cursor.rowcount > 0
