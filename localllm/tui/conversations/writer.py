"""The thread that writes."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localllm.errors import LocalLLMError, UnsupportedError
from localllm.tui.conversations import database
from localllm.tui.conversations.unwritten import Batch, Row, Unwritten, write

SOON_S = 0.5  # for what grows: a kill loses at most this and the time of a write
RETRY_S = 1.0
_CLOSE_S = 10.0
_REMOVED = (
    "The file of conversations, {path}, was removed, and a new one was begun: what was written "
    "before is gone."
)
_REPLACED = "The file of conversations, {path}, was replaced by another one, which is used now."


class Writer:
    """Writes what is put, in order, as soon as it can; tries again for ever.

    changed: called from the thread when `trouble` or `notes` have changed, and when a file that
    could not be opened could be.
    """

    def __init__(self, path: Path, changed: Callable[[], None] | None) -> None:
        self.path = path
        self.trouble: LocalLLMError | None = None
        self.notes: tuple[str, ...] = ()
        self.readers = database.Readers(path)
        self.readable = False  # whether the tables are those that this program knows
        self.tried = threading.Event()  # whether the file was opened, or could not be
        self.lock = threading.RLock()
        self.changed = changed
        self._unwritten = Unwritten()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._wake = threading.Condition(self.lock)
        self._due: float | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="conversations", daemon=True)
        self._thread.start()

    def put(self, table: str, id: int, values: Mapping[str, Any], *, delay: float = 0.0) -> None:
        """Columns of a row, on the disk after `delay` seconds."""
        with self._wake:
            self._unwritten.put(table, id, values)
            self._wake_at(delay)

    def purge(self, conversation: int) -> None:
        """Deletes a conversation for good."""
        with self._wake:
            self._unwritten.purge(conversation)
            self._wake_at(0.0)

    def of(self, table: str, id: int) -> Row:
        """The columns of a row that are newer than the disk."""
        with self.lock:
            return self._unwritten.of(table, id)

    def rows(self, table: str) -> dict[int, Row]:
        """All rows of which something is newer than the disk."""
        with self.lock:
            return dict(self._unwritten.rows(table))

    @property
    def unsaved(self) -> int:
        """How many rows are not on the disk, in whole or in part."""
        with self.lock:
            return len(self._unwritten)

    def flush(self, timeout: float) -> bool:
        """Waits until all is on the disk; whether it is."""
        with self._wake:
            self._wake_at(0.0)
            return self._wake.wait_for(lambda: self.tried.is_set() and not self._unwritten, timeout)

    def settle(self, timeout: float) -> bool:
        """As `flush`, but gives up as soon as there is trouble."""
        with self._wake:
            self._wake_at(0.0)
            self._wake.wait_for(
                lambda: self.tried.is_set() and (self.trouble or not self._unwritten), timeout
            )
            return self.tried.is_set() and not self._unwritten and self.trouble is None

    def note(self, text: str) -> None:
        """A plain line for the user."""
        with self.lock:
            self.notes += (text,)
        self._tell()

    def close(self) -> LocalLLMError | None:
        """Writes what is left and ends the thread; why it could not, if so."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(_CLOSE_S)
        self.readers.renew()
        with self.lock:
            return self.trouble if self._unwritten else None

    def _wake_at(self, delay: float) -> None:
        due = time.monotonic() + delay
        if self._due is None or due < self._due:
            self._due = due
            self._wake.notify_all()

    def _run(self) -> None:
        self._attempt(Batch())
        while True:
            batch = self._next()
            if batch:
                self._attempt(batch)
            with self.lock:
                if self._closing and (not self._unwritten or self.trouble):
                    break
        if self._connection is not None:
            self._connection.close()

    def _next(self) -> Batch:
        """Waits until something is due; empty if only the end is."""
        with self._wake:
            while not self._closing:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wake.wait(left)
            self._due = None
            return self._unwritten.take()

    def _attempt(self, batch: Batch) -> None:
        """Opens the file if it is not open, and writes. What could not be is put back."""
        trouble: LocalLLMError | None = None
        try:
            connection = self._opened()
            if batch:
                write(connection, batch)
        except sqlite3.Error as e:
            trouble = database.error_of(e, self.path)
        except LocalLLMError as e:
            trouble = e
        with self._wake:
            if trouble is None:
                self._unwritten.written()
            else:
                self._unwritten.failed()
                self._due = time.monotonic() + RETRY_S
            said = str(self.trouble) != str(trouble)
            self.trouble = trouble
            self.tried.set()
            self._wake.notify_all()
        if said:
            self._tell()

    def _opened(self) -> sqlite3.Connection:
        """The connection; a new one if somebody removed or replaced the file."""
        lost = ""
        if self._connection is not None:
            inode = self._identity()
            if inode == self._inode:
                return self._connection
            self._connection.close()
            self._connection = None
            lost = _REMOVED if inode is None else _REPLACED
        self.readable = True
        try:
            self._connection, note = database.prepare(self.path)
        except UnsupportedError:
            self.readable = False
            raise
        self._inode = self._identity()
        self.readers.renew()
        if note or lost:
            self.note(note or lost.format(path=self.path))
        return self._connection

    def _identity(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _tell(self) -> None:
        if self.changed is not None:
            with contextlib.suppress(Exception):  # a UI that is going away
                self.changed()
