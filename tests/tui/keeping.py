"""Conversations for a test of one screen."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from localllm.tui.compared import Compared
from localllm.tui.conversations.store import Conversations


@contextlib.contextmanager
def empty_conversation() -> Iterator[Compared]:
    """Where a comparison is kept."""
    with tempfile.TemporaryDirectory() as folder:
        store = Conversations(Path(folder, "conversations.db"))
        try:
            yield Compared(store, store.create().id)
        finally:
            store.close()
