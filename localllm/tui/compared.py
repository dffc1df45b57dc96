"""What two models answer to one question, kept in a conversation as it comes.

Nothing here knows Textual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localllm.tui.conversations.kinds import Attachment, Message
from localllm.tui.conversations.store import Conversations


class Compared:
    """The question stands below the end of the shown path, and the answers below the question, as
    branches. The same question to other models gets further branches."""

    def __init__(self, store: Conversations, conversation: int) -> None:
        path = store.path(conversation)
        self.path = path  # before anything was asked here
        self._store, self._conversation = store, conversation
        self._parent = path[-1].id if path else None
        self._question: Message | None = None
        self._answers: list[Message] = []  # of the last question
        self._kept: list[Message] = []  # of all of them

    @property
    def has_answers(self) -> bool:
        """Whether the conversation is another one now."""
        return bool(self._kept)

    def begin(self, text: str, attached: Sequence[Attachment], names: Sequence[str]) -> Message:
        """Keeps a question, and an answer of each model, which grows. Returns the question."""
        question = self._question
        if question is None or (question.content, question.attachments) != (text, tuple(attached)):
            question = self._question = self._store.add(
                self._conversation, self._parent, "user", text, attachments=attached
            )
        self._answers = [
            self._store.add(
                self._conversation, question.id, "assistant", model=name, finish_reason=None
            )
            for name in names
        ]
        self._kept += self._answers
        return question

    def grow(self, at: int, text: str, reasoning: str) -> None:
        """All that an answer has so far. at: which of the models, from 0."""
        self._store.grow(self._answers[at].id, text, reasoning)

    def end(
        self, at: int, text: str, reasoning: str, *, finish_reason: str, stats: Mapping[str, Any]
    ) -> None:
        """The whole of an answer. Where nothing came nothing stays: neither of an answer, nor of a
        question without answers."""
        answer = self._answers[at]
        if text or reasoning:
            self._store.finish(answer.id, text, reasoning, finish_reason=finish_reason, stats=stats)
            return
        self._store.drop(answer.id)
        self._kept.remove(answer)
        question = self._question
        if question is not None and all(each.parent != question.id for each in self._kept):
            self._store.drop(question.id)
            self._question = None
        if self._kept:
            self._store.select(self._conversation, self._kept[-1].id)
        else:
            self._store.cut(self._conversation, self._parent)

    def choose(self, at: int) -> None:
        """The conversation goes on with an answer that is whole."""
        self._store.select(self._conversation, self._answers[at].id)
