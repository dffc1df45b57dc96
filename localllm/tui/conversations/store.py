"""The conversations of this user: reading, changing, searching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localllm.errors import LocalLLMError
from localllm.tui.conversations.kinds import (
    Attachment,
    Conversation,
    Forgotten,
    Hit,
    Message,
    Opened,
)

PAGE = 40


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
    ) -> None: ...

    @property
    def trouble(self) -> LocalLLMError | None:
        """Why something is not on the disk yet; None: all is well."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Plain lines on what happened to the file, e.g. that a damaged one was put aside."""
        ...

    @property
    def unsaved(self) -> int:
        """How many conversations and messages are not on the disk yet."""
        ...

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits until all is on the disk; whether it is."""
        ...

    def close(self) -> LocalLLMError | None:
        """Writes what is left, deletes for good what was deleted here. Why it could not, if so."""
        ...

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
        ...

    def change(self, conversation: int, **fields: Any) -> None:
        """Sets fields of `Conversation`: title, model, system, params, think, pinned, tags,
        draft."""
        ...

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
        ...

    def grow(self, message: int, content: str, reasoning: str = "") -> None:
        """All that an answer has so far. Cheap: it is written at most twice a second."""
        ...

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
        ...

    def select(self, conversation: int, message: int) -> None:
        """Shows the branch of a message, down to where it was left last."""
        ...

    def cut(self, conversation: int, message: int | None) -> None:
        """Ends the shown path at a message (undo); what lies below stays in the tree. None: an
        empty path."""
        ...

    def delete(self, conversation: int) -> None:
        """Hides a conversation; `restore` brings it back until the store is closed, or a day has
        passed. Then it goes for good, and `forget` is called with it."""
        ...

    def restore(self, conversation: int) -> None:
        """Undoes `delete`."""
        ...

    # ---- reading

    def listed(self, text: str = "", *, tag: str = "") -> list[Conversation]:
        """Those not deleted, pinned ones first, then the newest. text: part of the title or a
        tag."""
        ...

    def tags(self) -> list[str]:
        """All that are in use."""
        ...

    def open(self, conversation: int, limit: int = PAGE) -> Opened:
        """The newest messages. Raises `ArgumentError` if there is no such conversation."""
        ...

    def open_at(self, message: int, limit: int = PAGE) -> Opened:
        """As `open`, from the branch of a message (which is shown from now on), and at least down
        to it. Raises `ArgumentError` if there is no such message."""
        ...

    def earlier(self, conversation: int, before: int, limit: int = PAGE) -> tuple[Message, ...]:
        """The messages of the shown path before one of it, the oldest first."""
        ...

    def path(self, conversation: int) -> tuple[Message, ...]:
        """All messages of the shown path: what a model is asked with."""
        ...

    def search(self, text: str, limit: int = 100) -> list[Hit]:
        """Titles and messages that hold all words of a text (their beginnings suffice), titles
        first, then the newest. Any text is allowed."""
        ...
