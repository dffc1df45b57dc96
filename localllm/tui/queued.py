"""Questions that wait for an answer to end, or for a model. Each belongs to its conversation, whose
draft holds it until it is asked: a program that ends loses none.

Nothing here knows of a terminal.
"""

from __future__ import annotations

from dataclasses import dataclass

from localllm.attachments import with_files
from localllm.tui.conversations.kinds import Attachment


@dataclass(frozen=True)
class Question:
    """What was typed, and the conversation it was typed in."""

    conversation: int
    text: str
    attached: tuple[Attachment, ...] = ()

    @property
    def written(self) -> str:
        """All of it as one text, to be typed again: attachments are texts in it, pictures names."""
        files = [(each.name, each.text) for each in self.attached if each.kind == "text"]
        pictures = "".join(f" @{each.path}" for each in self.attached if each.kind == "image")
        return with_files(self.text + pictures, files)


class Queue(list[Question]):
    """In the order in which they are asked."""

    def of(self, conversation: int) -> list[Question]:
        """Those of a conversation."""
        return [each for each in self if each.conversation == conversation]

    def draft(self, conversation: int, typed: str) -> str:
        """What a conversation keeps as its draft: what waits, then what is typed."""
        texts = [each.written for each in self.of(conversation)]
        return "\n\n".join([*texts, *([typed] if typed else [])])

    def typed(self, conversation: int, draft: str) -> str:
        """What is typed, of a draft."""
        waiting = self.draft(conversation, "")
        return draft.removeprefix(waiting).removeprefix("\n\n") if waiting else draft
