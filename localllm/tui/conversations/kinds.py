"""What a kept conversation consists of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROLES = ("user", "assistant", "system")


@dataclass(frozen=True)
class Attachment:
    """Something that a message carries. kind: "text", whose `text` is kept whole, or "image", of
    which only the `path` is kept."""

    name: str
    kind: str = "text"
    text: str = ""
    path: str = ""


@dataclass(frozen=True)
class Message:
    """A node of a conversation's tree. Texts are as they came: the UI escapes them.

    parent: None for a first message. siblings: the ids of all alternatives at its place, in order
    of their making, its own among them; empty where they were not asked for. finish_reason: None
    while an answer grows, and for ever if its program died meanwhile; "" for what is no answer.
    """

    id: int
    conversation: int
    parent: int | None
    role: str  # one of ROLES
    content: str = ""
    reasoning: str = ""
    model: str = ""
    finish_reason: str | None = ""
    stats: Mapping[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    created: float = 0.0  # seconds since 1970, to the millisecond
    siblings: tuple[int, ...] = ()

    @property
    def place(self) -> int:
        """Its index among its siblings."""
        return self.siblings.index(self.id) if self.id in self.siblings else 0


@dataclass(frozen=True)
class Conversation:
    """All but the messages. leaf: the last message of the path that is shown; None: there is none.
    deleted_at: when it was deleted; it can be restored until it is purged. draft: what was typed
    and not sent."""

    id: int
    title: str = ""
    model: str = ""
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)  # GenerateParams.changed()
    think: bool | str | None = None
    created: float = 0.0
    updated: float = 0.0
    pinned: bool = False
    deleted_at: float | None = None
    leaf: int | None = None
    draft: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """A conversation with the newest messages of its path, the oldest first. n_earlier: how many of
    the path lie before them; `Conversations.earlier` gives these."""

    conversation: Conversation
    messages: tuple[Message, ...]
    n_earlier: int


@dataclass(frozen=True)
class Hit:
    """A place where a text was found. message: None if it was in the title. pieces: a part of the
    text, cut into what matched (True) and what did not."""

    conversation: int
    message: int | None
    title: str
    role: str
    when: float
    pieces: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Forgotten:
    """A conversation that is deleted for good: what the engine may have kept of it can go too.
    branches: every path from a first message to a last one, the system prompt not among them."""

    conversation: Conversation
    branches: tuple[tuple[Message, ...], ...]


def now() -> float:
    """Seconds since 1970, to the millisecond."""
    return round(time.time(), 3)
