"""What is read: the disk, with all that is newer laid over it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, LocalLLMError
from localllm.tui.conversations import database, looking, rows
from localllm.tui.conversations.kinds import Conversation, Forgotten, Hit, Message, Opened
from localllm.tui.conversations.tree import Tree
from localllm.tui.conversations.unwritten import DROPPED, Row
from localllm.tui.conversations.writer import Writer

OPEN_S = 5.0  # how long the first reading waits for the file to be opened
_REST_S = 1.0  # after a read that was refused, while writes are, too: nobody waits again and again
_IDS = 500  # of one query; SQLite's limit was 999 once
_CONVERSATION = ", ".join(("id", *rows.CONVERSATION))
_MESSAGE = ", ".join(("id", *rows.MESSAGE))
_TAGS = "SELECT tag FROM tags WHERE conversation = ? ORDER BY tag"
_SPOKEN = "(draft != '' OR EXISTS (SELECT 1 FROM messages WHERE conversation = conversations.id))"
_LISTED = f"deleted_at IS NULL AND {_SPOKEN}"


class Reading:
    """Reads conversations. What the file refuses is read as nothing, and `trouble` says so."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.trouble: LocalLLMError | None = None
        self.n_queries = 0
        self._patience_s = OPEN_S
        self._not_before = 0.0

    @property
    def path(self) -> Path:
        return self._writer.path

    def conversation(self, id: int) -> Conversation | None:
        """Also a deleted one."""
        newer = self._writer.of("conversations", id)
        found = self._query(f"SELECT {_CONVERSATION} FROM conversations WHERE id = ?", (id,))
        row = {**(found[0] if found else {}), **newer}
        if not found and "created" not in newer:
            return None
        tags = newer.get("tags")
        if tags is None:
            found = self._query(_TAGS, (id,))
            tags = [each["tag"] for each in found]
        return rows.conversation_of(id, row, tags)

    def listed(self, text: str, tag: str) -> list[Conversation]:
        """See `Conversations.listed`."""
        newer = self._writer.rows("conversations")
        spoken = {row.get("conversation") for row in self._writer.rows("messages").values()}
        found = self._query(f"SELECT {_CONVERSATION} FROM conversations WHERE {_LISTED}")
        by_id: dict[int, Row] = {row["id"]: row for row in found}
        for id, values in newer.items():
            if id in by_id:
                by_id[id] = {**by_id[id], **values}
            elif "created" in values and (values["draft"] or id in spoken):
                by_id[id] = values
            elif values.get("deleted_at", 0) is None or values.get("draft") or id in spoken:
                whole = self.conversation(id)  # restored, or with its first message or draft
                if whole is not None and (whole.draft or whole.leaf is not None):
                    by_id[id] = rows.conversation_row(whole)
        tags = self._tags(by_id)
        all_of_them = (rows.conversation_of(id, row, tags[id]) for id, row in by_id.items())
        query = looking.wanted(text)
        kept = [
            each
            for each in all_of_them
            if each.deleted_at is None
            and (not tag or tag in each.tags)
            and (not query or query.finds(" ".join((each.title, *each.tags))))
        ]
        return sorted(kept, key=lambda each: (not each.pinned, -each.updated, -each.id))

    def _tags(self, by_id: dict[int, Row]) -> dict[int, Sequence[str]]:
        found: dict[int, Any] = {id: [] for id in by_id}
        for row in self._query("SELECT conversation, tag FROM tags ORDER BY tag"):
            if row["conversation"] in found:
                found[row["conversation"]].append(row["tag"])
        for id, values in by_id.items():
            if "tags" in values:
                found[id] = values["tags"]
        return found

    def tree(self, conversation: int) -> Tree:
        """The shape of a conversation, without texts."""
        newer = self._writer.rows("messages")  # first: what is written meanwhile is on the disk
        found = self._query(
            "SELECT id, parent, chosen FROM messages INDEXED BY messages_tree "
            "WHERE conversation = ?",
            (conversation,),
        )
        tree = Tree((row["id"], row["parent"], row["chosen"]) for row in found)
        for id, values in newer.items():
            if DROPPED in values:
                tree.drop(id)
            elif "role" in values and values["conversation"] == conversation:
                tree.add(id, values["parent"], values.get("chosen"))
            elif id in tree.nodes and "chosen" in values:
                tree.nodes[id].chosen = values["chosen"]
        return tree

    def messages(self, ids: Sequence[int], tree: Tree | None = None) -> tuple[Message, ...]:
        """In the order of ids; those that are not there are left out. With a tree they know their
        siblings."""
        newer = {id: self._writer.of("messages", id) for id in ids}
        found: dict[int, Row] = {}
        for begin in range(0, len(ids), _IDS):
            some = ids[begin : begin + _IDS]
            marks = ", ".join("?" * len(some))
            query = f"SELECT {_MESSAGE} FROM messages WHERE id IN ({marks})"
            found |= {row["id"]: row for row in self._query(query, some)}
        made = []
        for id in ids:
            if DROPPED not in newer[id] and (id in found or "role" in newer[id]):
                siblings = tree.siblings(id) if tree else ()
                row = {**found.get(id, {}), **newer[id]}
                made.append(rows.message_of(id, row, siblings))
        return tuple(made)

    def opened(self, id: int, limit: int, *, at: int | None = None) -> Opened:
        """The newest messages of the shown path, and at least all from `at` on."""
        conversation = self.conversation(id)
        if conversation is None:
            raise ArgumentError(f"there is no conversation {id}", "It was deleted.")
        tree = self.tree(id)
        path = tree.path(conversation.leaf)
        first = max(0, len(path) - limit)
        if at is not None and at in path:
            first = max(0, min(first, path.index(at) - limit // 4))
        return Opened(conversation, self.messages(path[first:], tree), first)

    def earlier(self, id: int, before: int, limit: int) -> tuple[Message, ...]:
        """The messages before one of the shown path."""
        conversation = self.conversation(id)
        tree = self.tree(id)
        path = tree.path(conversation.leaf if conversation else None)
        end = path.index(before) if before in path else 0
        return self.messages(path[max(0, end - limit) : end], tree)

    def forgotten(self, id: int) -> Forgotten | None:
        """All of a conversation that is to be deleted for good."""
        conversation = self.conversation(id)
        if conversation is None:
            return None
        tree = self.tree(id)
        paths = [tree.path(leaf) for leaf in tree.leaves()]
        every = {m.id: m for m in self.messages(sorted(tree.nodes))}
        return Forgotten(
            conversation, tuple(tuple(every[i] for i in path if i in every) for path in paths)
        )

    def deleted_before(self, moment: float) -> list[int]:
        """Conversations that were deleted so long ago."""
        found = self._query("SELECT id FROM conversations WHERE deleted_at < ?", (moment,))
        return [row["id"] for row in found]

    def empty(self, moment: float, own: set[int]) -> list[int]:
        """Conversations without messages and draft that were begun before, or are one's own."""
        newer = self._writer.rows("conversations")
        spoken = {row.get("conversation") for row in self._writer.rows("messages").values()}
        found = self._query(f"SELECT id, created FROM conversations WHERE NOT {_SPOKEN}")
        return [
            row["id"]
            for row in found
            if (row["created"] < moment or row["id"] in own)
            and row["id"] not in spoken
            and not newer.get(row["id"], {}).get("draft")
        ]

    def search(self, text: str, limit: int) -> list[Hit]:
        """See `Conversations.search`."""
        query = looking.wanted(text)
        if not query or limit <= 0:
            return []
        known = {each.id: each for each in self.listed("", "")}
        hits = [
            Hit(each.id, None, each.title, "", each.updated, looking.around(each.title, query))
            for each in sorted(known.values(), key=lambda each: -each.updated)
            if query.finds(each.title)
        ]
        unwritten = self._writer.rows("messages")
        found = {row["id"]: row for row in self._matches(query, limit + len(unwritten))}
        for id, newer in unwritten.items():
            if "content" in newer:
                found.pop(id, None)
                whole = self.messages([id])
                if whole and query.finds(whole[0].content):
                    found[id] = rows.message_row(whole[0])
        for id in sorted(found, reverse=True):
            row = found[id]
            if there := known.get(row["conversation"]):
                pieces = looking.around(row["content"], query)
                hits.append(Hit(there.id, id, there.title, row["role"], row["created"], pieces))
        return hits[:limit]

    def _matches(self, query: looking.Wanted, limit: int) -> list[Row]:
        wheres = ["instr(lower(content), lower(?))"] * len(query.parts)
        args: list[Any] = list(query.parts)
        if query.match:
            wheres.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            args.append(query.match)
        alive = "SELECT id FROM conversations WHERE deleted_at IS NULL"
        return self._query(
            "SELECT id, conversation, role, content, created FROM messages "
            f"WHERE {' AND '.join(wheres)} AND conversation IN ({alive}) "
            "ORDER BY id DESC LIMIT ?",
            (*args, limit),
        )

    def _query(self, sql: str, args: Iterable[Any] = ()) -> list[Row]:
        """No rows where the file cannot be read."""
        writer = self._writer
        writer.tried.wait(self._patience_s)
        self._patience_s = 0.0
        if not writer.readable or (writer.trouble and time.monotonic() < self._not_before):
            return []
        self.n_queries += 1
        try:
            with writer.readers.one() as connection:
                cursor = connection.execute(sql, tuple(args))
                names = [column[0] for column in cursor.description]
                found = [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as e:
            self.trouble = database.error_of(e, self.path)
            self._not_before = time.monotonic() + _REST_S
            return []
        self.trouble = None
        return found
