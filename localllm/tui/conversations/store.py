"""The conversations of this user: reading, changing, searching."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.errors import ArgumentError, LocalLLMError
from localllm.tui.conversations import rows
from localllm.tui.conversations.kinds import (
    ROLES,
    Attachment,
    Conversation,
    Forgotten,
    Hit,
    Message,
    Opened,
    now,
)
from localllm.tui.conversations.reading import OPEN_S, Reading
from localllm.tui.conversations.schema import new_id
from localllm.tui.conversations.titles import title_of
from localllm.tui.conversations.unwritten import DROPPED, Row, as_json, clean
from localllm.tui.conversations.writer import SOON_S, Writer

PAGE = 40
UNDO_S = 86400.0  # after this, another program that starts deletes for good


class Conversations:
    """Changes return at once: they count from then on for every reading, and a thread writes them.
    What cannot be written (full disk, locked or read-only file, file of a newer version) stays in
    memory, is read from there, and is tried again; `trouble` says why. No method raises for that.

    All methods can be called from any thread. `changed` is called from the writer's thread when
    `trouble` or `notes` have changed.
    """

    def __init__(
        self,
        path: Path | None = None,  # None: `paths.current().conversations`
        *,
        forget: Callable[[Forgotten], None] | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self.file = path or paths.current().conversations
        self._forget = forget
        self._growing: dict[int, Row] = {}  # whole rows: what they are part of may be deleted
        self._deleted: set[int] = set()  # by this program
        self._created: set[int] = set()
        self._writer = Writer(self.file, changed)
        self._reading = Reading(self._writer)

    def watch(self, changed: Callable[[], None] | None) -> None:
        """Sets `changed`, which must not wait for anything; it is called once at once."""
        self._writer.changed = changed
        if changed is not None:
            changed()

    @property
    def trouble(self) -> LocalLLMError | None:
        """Why something is not on the disk yet, or cannot be read; None: all is well."""
        return self._writer.trouble or self._reading.trouble

    @property
    def why_not_saved(self) -> str:
        """The trouble in few words: the file's path stands elsewhere. Empty: all is saved."""
        if self.trouble is None:
            return ""
        file, why = self.file, self.trouble.message
        for path, short in ((f" in {file}", ""), (f" to {file}", ""), (str(file), file.name)):
            why = why.replace(path, short)
        return why

    @property
    def notes(self) -> tuple[str, ...]:
        """Plain lines on what happened to the file, e.g. that a damaged one was put aside."""
        return self._writer.notes

    @property
    def unsaved(self) -> int:
        """How many conversations and messages are not on the disk yet."""
        return self._writer.unsaved

    def unsaved_conversations(self) -> list[int]:
        """Those with words that are not on the disk, also after `close`."""
        ids = set(self._writer.rows("conversations"))
        ids |= {row.get("conversation", 0) for row in self._writer.rows("messages").values()}
        return [each.id for each in self.listed() if each.id in ids]

    @property
    def n_queries(self) -> int:
        """How often the file was asked."""
        return self._reading.n_queries

    def version(self) -> int:
        """Another number when any program has written: what is listed may have changed."""
        with contextlib.suppress(sqlite3.Error):
            if self._writer.readable and self._writer.tried.is_set():
                return self._writer.readers.version()
        return 0

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits until all is on the disk; whether it is."""
        return self._writer.flush(timeout)

    def close(self) -> LocalLLMError | None:
        """Writes what is left, deletes for good what was deleted here, or by any program more than
        a day ago. Why it could not, if so."""
        if self._writer.settle(OPEN_S):
            gone = set(self._deleted)
            if self._forget is not None:  # else what the engine keeps of it would stay
                gone.update(self._reading.deleted_before(now() - UNDO_S))
            for conversation in sorted(gone):
                self._purge(conversation)
            for conversation in self._reading.empty(now() - UNDO_S, self._created):
                self._writer.purge(conversation)
        return self._writer.close()

    def _purge(self, conversation: int) -> None:
        forgotten = self._reading.forgotten(conversation)
        if forgotten is None or forgotten.conversation.deleted_at is None:
            return  # another program deleted it for good, or goes on with it
        if self._forget is not None:
            try:
                self._forget(forgotten)
            except (LocalLLMError, OSError) as e:
                self._writer.note(f"What was computed of a deleted conversation is kept: {e}")
        self._writer.purge(conversation)

    # ---- changing

    def create(
        self,
        *,
        title: str = "",
        model: str = "",
        system: str | None = None,
        params: Mapping[str, Any] | None = None,
        think: bool | str | None = None,
    ) -> Conversation:
        """A new conversation. One without messages and draft is not listed."""
        moment = now()
        made = Conversation(
            new_id(), title, model, system, dict(params or {}), think, moment, moment
        )
        self._created.add(made.id)
        return self.put(made)

    def put(self, conversation: Conversation) -> Conversation:
        """A whole conversation as it is, with a new id if it has none (0): what was imported."""
        made = dataclasses.replace(conversation, id=conversation.id or new_id())
        row = rows.conversation_row(made)
        self._writer.put("conversations", made.id, row)
        return rows.conversation_of(made.id, row, row["tags"])

    def revive(self, gone: Conversation) -> Conversation:
        """A conversation that is not there any more, as it was but without its messages; what is
        new in it stays."""
        row = rows.conversation_row(dataclasses.replace(gone, leaf=None, deleted_at=None))
        with self._writer.lock:
            row.update(self._writer.of("conversations", gone.id))
            self._writer.put("conversations", gone.id, row)
        return rows.conversation_of(gone.id, row, row["tags"])

    def touch(self, conversation: int, moment: float) -> None:
        """Says when it was used last (seconds since 1970): what lists are sorted by."""
        self._writer.put("conversations", conversation, {"updated": moment})

    def change(self, conversation: int, **fields: Any) -> None:
        """Sets fields of `Conversation`: title, model, system, params, think, pinned, tags,
        draft."""
        delay = SOON_S if set(fields) == {"draft"} else 0.0
        self._writer.put("conversations", conversation, rows.changed_row(fields), delay=delay)

    def add(
        self,
        conversation: int,
        parent: int | None,
        role: str,
        content: str = "",
        *,
        reasoning: str = "",
        model: str = "",
        attachments: Sequence[Attachment] = (),
        finish_reason: str | None = "",
        stats: Mapping[str, Any] | None = None,
    ) -> Message:
        """A new message below `parent`, and the end of the shown path. finish_reason None: an
        answer that grows (`grow`, `finish`). The first question gives a conversation without a
        title its title. Editing is adding a sibling: the parent of the old message."""
        made = Message(
            new_id(),
            conversation,
            parent,
            role,
            content,
            reasoning,
            model,
            finish_reason,
            dict(stats or {}),
            tuple(attachments),
            now(),
        )
        kept = self.put_message(made)
        if role == "user":
            known = self._reading.conversation(conversation)
            if known is not None and not known.title:
                self.change(conversation, title=title_of(content))
        return kept

    def put_message(self, message: Message) -> Message:
        """As `add`, for a message that is whole; it gives no title. Raises `ArgumentError` for a
        role that is none."""
        if message.role not in ROLES:
            raise ArgumentError(f"a message cannot be of {message.role[:40]!a}")
        row = rows.message_row(message)
        fields: Row = {"leaf": message.id, "updated": message.created, "deleted_at": None}
        with self._writer.lock:
            self._deleted.discard(message.conversation)
            if message.finish_reason is None:
                self._growing[message.id] = row
            self._writer.put("messages", message.id, row)
            if message.parent is not None:
                self._writer.put("messages", message.parent, {"chosen": message.id})
            self._writer.put("conversations", message.conversation, fields)
        return rows.message_of(message.id, row)

    def grow(self, message: int, content: str, reasoning: str = "") -> None:
        """All that an answer has so far. Cheap: it is written at most twice a second."""
        self._renew(message, {"content": content, "reasoning": reasoning}, SOON_S)

    def finish(
        self,
        message: int,
        content: str,
        reasoning: str = "",
        *,
        finish_reason: str,
        stats: Mapping[str, Any] | None = None,
    ) -> None:
        """The whole of an answer, and why it ended."""
        row: Row = {"content": content, "reasoning": reasoning, "finish_reason": finish_reason}
        if stats is not None:
            row["stats"] = as_json(dict(stats))
        self._renew(message, row, 0.0)
        with self._writer.lock:
            self._growing.pop(message, None)

    def drop(self, message: int) -> None:
        """Takes back a message that has none below it, such as an answer that never began."""
        with self._writer.lock:
            self._growing.pop(message, None)
            self._writer.put("messages", message, {DROPPED: True})

    def _renew(self, message: int, row: Row, delay: float) -> None:
        row = {name: clean(value) for name, value in row.items()}
        with self._writer.lock:
            if (whole := self._growing.get(message)) is not None:
                whole.update(row)
                row = whole
            self._writer.put("messages", message, row, delay=delay)

    def select(self, conversation: int, message: int) -> None:
        """Shows the branch of a message, down to where it was left last."""
        tree = self._reading.tree(conversation)
        if message not in tree.nodes:
            raise ArgumentError(f"there is no message {message} in this conversation")
        with self._writer.lock:
            # Above it, too: a walk back over these branches comes here again.
            path = tree.path(message)
            for above, below in itertools.pairwise(path):
                if tree.nodes[above].chosen != below:
                    self._writer.put("messages", above, {"chosen": below})
            self._writer.put("conversations", conversation, {"leaf": tree.down(message)})

    def cut(self, conversation: int, message: int | None) -> None:
        """Ends the shown path at a message (undo); what lies below stays in the tree. None: an
        empty path."""
        self._writer.put("conversations", conversation, {"leaf": message})

    def delete(self, conversation: int) -> None:
        """Hides a conversation; `restore` brings it back until the store is closed, or a day has
        passed. Then it goes for good, and `forget` is called with it."""
        with self._writer.lock:
            self._deleted.add(conversation)
            self._writer.put("conversations", conversation, {"deleted_at": now()})

    def restore(self, conversation: int) -> None:
        """Undoes `delete`."""
        with self._writer.lock:
            self._deleted.discard(conversation)
            self._writer.put("conversations", conversation, {"deleted_at": None})

    # ---- reading

    def listed(self, text: str = "", *, tag: str = "") -> list[Conversation]:
        """Those not deleted, pinned ones first, then the newest. text: words of the title or of a
        tag, or their beginnings."""
        return self._reading.listed(text, tag)

    def tags(self) -> list[str]:
        """All that are in use."""
        return sorted({tag for each in self.listed() for tag in each.tags})

    def open(self, conversation: int, limit: int = PAGE) -> Opened:
        """The newest messages. Raises `ArgumentError` if there is no such conversation."""
        return self._reading.opened(conversation, limit)

    def open_at(self, message: int, limit: int = PAGE) -> Opened:
        """As `open`, from the branch of a message (which is shown from now on), and at least down
        to it. Raises `ArgumentError` if there is no such message."""
        found = self._reading.messages([message])
        if not found:
            raise ArgumentError(f"there is no message {message}", "It was deleted.")
        conversation = found[0].conversation
        opened = self._reading.opened(conversation, limit, at=message)
        if message in {each.id for each in opened.messages}:
            return opened
        self.select(conversation, message)
        return self._reading.opened(conversation, limit, at=message)

    def earlier(self, conversation: int, before: int, limit: int = PAGE) -> tuple[Message, ...]:
        """The messages of the shown path before one of it, the oldest first."""
        return self._reading.earlier(conversation, before, limit)

    def path(self, conversation: int) -> tuple[Message, ...]:
        """All messages of the shown path: what a model is asked with."""
        return self._reading.opened(conversation, 1 << 30).messages

    def every(self, conversation: int) -> tuple[Message, ...]:
        """All messages of all branches, the oldest first."""
        tree = self._reading.tree(conversation)
        return self._reading.messages(sorted(tree.nodes), tree)

    def search(self, text: str, limit: int = 100) -> list[Hit]:
        """Titles and messages that hold all words of a text (their beginnings suffice), titles
        first, then the newest. Any text is allowed."""
        return self._reading.search(text, limit)
