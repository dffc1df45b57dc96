"""What `localllm chat` does with kept conversations where there is no screen: lists them, writes
them to a file, takes them out of one."""

from __future__ import annotations

import datetime
from pathlib import Path

from localllm import moments
from localllm.cli import output
from localllm.cli.table import Column, render, screen_width
from localllm.errors import ArgumentError, FileError
from localllm.tui.conversations import exporting, importing
from localllm.tui.conversations.kinds import Conversation
from localllm.tui.conversations.store import Conversations

_COLUMNS = (
    Column("TITLE", cut=True),
    Column("MODEL", cut=True),
    Column("LAST USED"),
    Column("TAGS", cut=True),
)
_WAIT_S = 30.0


def run(store: Conversations, *, listed: bool, only: str, export: str, bring: str) -> int:
    """Does the one that was asked for. Raises `LocalLLMError`."""
    try:
        if bring:
            _import(store, Path(bring).expanduser())
        else:
            found = _found(store, only)
            if listed and found:
                output.emit(render(_COLUMNS, [_cells(each) for each in found], screen_width()))
            elif not listed:
                _export(store, found, Path(export).expanduser())
    finally:
        trouble = store.close()
    if trouble is not None:
        raise trouble
    return 0


def _found(store: Conversations, only: str) -> list[Conversation]:
    found = store.listed(only)
    if store.trouble is not None:
        raise store.trouble
    for note in store.notes:
        output.note(note)
    if not found:
        output.say(
            "No conversation has these words in its title or tags." if only
            else "No conversations yet. localllm chat begins one."
        )  # fmt: skip
    return found


def _cells(each: Conversation) -> list[str]:
    try:
        moment = datetime.datetime.fromtimestamp(each.updated, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):  # an older import may have let in any number
        moment = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    title = each.title or each.draft or "untitled"
    return [title, each.model or "-", moments.ago(moment.isoformat()), ", ".join(each.tags) or "-"]


def _export(store: Conversations, found: list[Conversation], path: Path) -> None:
    if not found:
        raise ArgumentError("there is nothing to export")
    if path.suffix not in exporting.KINDS:
        raise ArgumentError(f"{str(path)[:200]!a} is no .json and no .md", "Name one: chats.json")
    if path.exists():
        raise FileError(f"{path} is there already", "Name another file, or delete it.")
    exporting.export(store, [each.id for each in found], path)
    output.say(output.escape_line(f"Exported {_count(len(found))} to {path}"))


def _import(store: Conversations, path: Path) -> None:
    imported = importing.import_file(store, path)
    for note in imported.notes:
        output.note(note)
    if not store.flush(_WAIT_S):
        raise store.trouble or FileError("the conversations could not be written in time")
    output.say(f"Imported {_count(len(imported.conversations))}")


def _count(n: int) -> str:
    return f"{n:,} conversation{'' if n == 1 else 's'}"
