"""The SQLite file: opening it, putting a damaged one aside, and plain words for its errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from localllm import moments, paths
from localllm.errors import FileError, FormatError, LocalLLMError, UnsupportedError
from localllm.tui.conversations import schema

WAIT_S = 1.0  # for another program that writes just now
READ_WAIT_S = 0.2  # no writer holds a reader up; what does is rare, and somebody looks on
_BESIDE = ("", "-wal", "-shm", "-journal")
_UNWRITABLE = ("readonly", "unable to open")
_DAMAGED = ("malformed", "not a database")


def connect(path: Path) -> sqlite3.Connection:
    """The connection that writes; any thread may use it, one at a time. Raises `sqlite3.Error`."""
    connection = _connection(
        path, "mode=rw", WAIT_S
    )  # never makes a file: `prepare` does, with its mode
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = 1")  # deleted words are overwritten
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """As `connect`; also where nothing may be written, not even the files beside it that readers
    share. Then what another program writes meanwhile is not seen."""
    for mode in ("mode=rw", "mode=ro&immutable=1"):
        connection = _connection(path, mode, READ_WAIT_S)
        try:
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA schema_version").fetchone()
        except BaseException as e:
            connection.close()
            last = mode != "mode=rw" or not isinstance(e, sqlite3.OperationalError)
            if last or not any(words in str(e) for words in _UNWRITABLE):
                raise
        else:
            return connection
    raise AssertionError


def _connection(path: Path, mode: str, wait_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=wait_s,
        isolation_level=None,
        check_same_thread=False,
    )


def prepare(path: Path) -> tuple[sqlite3.Connection, str]:
    """The connection that writes, to a file that is there, sound and up to date; and a line on what
    had to be done, or "". Raises `LocalLLMError`."""
    note = ""
    paths.ensure(path.parent)
    try:
        _make_private(path)
        identity = _identity(path)
        try:
            return _checked(path), note
        except sqlite3.DatabaseError as e:
            if not is_damage(e):
                raise
            note = _put_aside(path, identity)
        _make_private(path)
        return _checked(path), note
    except sqlite3.Error as e:
        raise error_of(e, path) from e
    except OSError as e:
        raise FileError(
            f"cannot open the conversations in {path}: {e.strerror or e}", _other_folder(path)
        ) from e


def _checked(path: Path) -> sqlite3.Connection:
    connection = connect(path)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError("database disk image is malformed")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        schema.migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """SQLite gives the files beside it the same mode."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    try:
        os.close(os.open(path, flags, 0o600))
    except PermissionError:
        if not path.exists():
            raise
        return  # only readable: SQLite says so when it comes to writing
    if os.name != "nt" and path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _put_aside(path: Path, identity: tuple[int, int] | None) -> str:
    """Renames a damaged file and what lies beside it, unless another program just did so."""
    if _identity(path) != identity:
        return ""
    stamp = moments.iso().replace(":", "").replace("+0000", "Z")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    while aside.exists():
        aside = aside.with_name(aside.name + "-")
    for suffix in _BESIDE:
        beside = path.with_name(path.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            beside.replace(aside.with_name(aside.name + suffix))
    return (
        f"The file of conversations was damaged. It was put aside as {aside}, "
        "and a new one was begun."
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the file itself is wrong."""
    return any(words in str(error) for words in _DAMAGED)


def error_of(error: sqlite3.Error, path: Path) -> LocalLLMError:
    """What a user is told. (Error codes came to Python with 3.11; the texts are SQLite's own.)"""
    text = str(error)
    if "locked" in text or "busy" in text:
        return FileError(
            f"another program holds the conversations in {path} locked",
            "It may be another localllm that does not go on; end it, or wait.",
        )
    if "full" in text:
        return FileError(
            f"the disk is full: conversations are not saved to {path}",
            f"Free some space where {path.parent} lies.",
        )
    if any(words in text for words in _UNWRITABLE):
        return FileError(
            f"conversations are not saved: {path} or its folder cannot be written",
            _other_folder(path),
        )
    if is_damage(error):
        return FormatError(
            f"the conversations in {path} are damaged",
            "Start localllm again: it puts the file aside.",
        )
    if "fts5" in text:
        return UnsupportedError("this Python's SQLite has no full-text search (FTS5)")
    return FileError(f"conversations are not saved to {path}: {text[:200]}")


def _other_folder(path: Path) -> str:
    return (
        f"Check who may write to {path.parent}, or set LOCALLLM_HOME to a folder that you can "
        "write to."
    )


class Readers:
    """Connections that only read, one for each thread that reads just now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._free: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._era = 0
        self._watch: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def one(self) -> Iterator[sqlite3.Connection]:
        """Raises `sqlite3.Error`."""
        with self._lock:
            era = self._era
            connection = self._free.pop() if self._free else None
        if connection is None:
            connection = connect_to_read(self._path)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if era == self._era:
                self._free.append(connection)
                return
        connection.close()

    def version(self) -> int:
        """Another number whenever any program has written to the file. Raises `sqlite3.Error`."""
        with self._lock:
            if self._watch is None:
                self._watch = connect_to_read(self._path)
            return int(self._watch.execute("PRAGMA data_version").fetchone()[0])

    def renew(self) -> None:
        """The file is another one now, or it is not needed any more."""
        with self._lock:
            self._era += 1
            free, self._free = self._free, []
            if self._watch is not None:
                free.append(self._watch)
                self._watch = None
        for connection in free:
            connection.close()
