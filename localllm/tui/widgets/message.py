"""A message of a conversation, with what can be done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widget import Widget
from textual.widgets import Collapsible, Static

from localllm.errors import LocalLLMError
from localllm.plain_text import escape, escape_line
from localllm.tui.conversations.kinds import Message
from localllm.tui.dialogue import figures_of
from localllm.tui.keys import bindings
from localllm.tui.widgets.answer import Answer, link
from localllm.tui.widgets.sheet import Part, Sheet

_ENDS = {
    "cancelled": "stopped",
    "length": "cut at the limit: g goes on",
    "error": "ended by an error",
}


#: What marks a role, what it is called, and what the mouse can do with its messages.
_HEADS = {
    "user": ("▸", "You", ("edit", "copy")),
    "assistant": ("◆", "Assistant", ("regenerate", "copy")),
    "system": ("■", "Instructions", ("copy",)),  # in the middle of what was imported
}


def _head(message: Message) -> Part:
    """Who speaks, which branch this is, and what the mouse can do."""
    mark, who, wishes = _HEADS[message.role]
    if message.role == "assistant":
        who = escape_line(message.model[:60]) or who
    line = Content.assemble((f"{mark} {who}", "bold"))
    if len(message.siblings) > 1:
        line = line.append("  ").append(link("‹", "older"))
        line = line.append(f" {message.place + 1}/{len(message.siblings)} ")
        line = line.append(link("›", "newer"))
    for what in wishes:
        line = line.append("  ").append(link(what, what))
    return Part(line, look="message--head", n_most=1)


class Reasoning(Collapsible):
    """What a model thought before it answered: folded, and drawn only where it is opened."""

    def __init__(self, text: str = "", *, running: bool = False) -> None:
        self._text, self._running = "", running
        self._n_words = 0
        self._count(text)
        self._answer: Answer | None = None
        self._body = Vertical(classes="reasoning-body")
        super().__init__(self._body, title=self._words(), collapsed=True, classes="reasoning")

    def _words(self) -> str:
        n = self._n_words
        words = f"{n:,} word" + ("" if n == 1 else "s")
        return f"Thinking, {words} so far" if self._running else f"Thought, {words}"

    def _count(self, text: str) -> None:
        self._n_words += len(text.split())
        if text[:1].strip() and self._text[-1:].strip():
            self._n_words -= 1  # the rest of a word
        self._text += text

    async def add(self, text: str) -> None:
        """More of it."""
        self._count(text)
        self.title = self._words()
        if self._answer is not None:
            await self._answer.add(text)

    async def end(self) -> None:
        """The answer itself begins."""
        if self._running:
            self._running = False
            self.title = self._words()
            if self._answer is not None:
                await self._answer.end()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """The first time it is opened, its text is drawn."""
        event.stop()
        if self._answer is None:
            self._answer = Answer(self._text, ended=not self._running)
            await self._body.mount(self._answer)

    def on_collapsible_collapsed(self, event: Collapsible.Collapsed) -> None:
        event.stop()


class MessageView(Sheet, can_focus=True):
    """A message. An answer may still grow."""

    BINDINGS = bindings("message")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "message--head", "message--attachment", "message--foot"
    }  # fmt: skip

    class Wanted(Event):
        """Something is to be done with a message: an action of keys.py."""

        def __init__(self, view: MessageView, what: str) -> None:
            super().__init__()
            self.view, self.what = view, what

    def __init__(self, message: Message, *, growing: bool = False) -> None:
        super().__init__(classes=f"message {message.role}", id=f"message-{message.id}")
        self.message, self.growing = message, growing
        self._reasoning: Reasoning | None = None
        self._answer: Answer | None = None
        self._foot: Part | None = None
        self.put(0, _head(message))
        for attachment in message.attachments:
            kind = "image" if attachment.kind == "image" else f"{len(attachment.text):,} characters"
            line = Content(f"⊕ {escape_line(attachment.name[:80])} ({kind})")
            self.put(len(self.items), Part(line, look="message--attachment"))
        if message.role == "assistant":
            if message.reasoning:
                self._reasoning = Reasoning(message.reasoning)
                self.put(len(self.items), self._reasoning)
            self._answer = Answer(message.content, ended=not growing)
            self.put(len(self.items), self._answer)
            self.show_end(message.finish_reason, message.stats)
        else:
            text = Content(escape(message.content).expandtabs(4))
            self.put(len(self.items), Part(text))

    def compose(self) -> ComposeResult:
        yield from (item for item in self.items if isinstance(item, Widget))

    @property
    def answer(self) -> Answer | None:
        """What grows, of an answer."""
        return self._answer

    @property
    def reasoning(self) -> Reasoning | None:
        """The folded part, if there is one."""
        return self._reasoning

    async def add(self, text: str, reasoning: str) -> None:
        """Shows more of an answer."""
        if reasoning and self._answer is not None:
            if self._reasoning is None:
                self._reasoning = Reasoning(running=True)
                self.put(self.items.index(self._answer), self._reasoning, insert=True)
                if self._answer.parent is self:  # else it is still to be composed
                    await self.mount(self._reasoning, before=self._answer)
            await self._reasoning.add(reasoning)
        if text and self._answer is not None:
            if self._reasoning is not None:
                await self._reasoning.end()
            await self._answer.add(text)

    async def end(self, message: Message) -> None:
        """The answer is whole."""
        self.growing, self.message = False, message
        if self._reasoning is not None:
            await self._reasoning.end()
        if self._answer is not None:
            await self._answer.end()
        self.put(0, _head(message))
        self.show_end(message.finish_reason, message.stats)

    async def go_on(self) -> None:
        """The answer, which had ended, grows again."""
        self.growing = True
        if self._answer is not None:
            await self._answer.go_on()
        self._show_foot("")

    def fold(self, folded: bool | None = None) -> None:
        """Folds the reasoning or opens it; None: the other of both."""
        if self._reasoning is not None:
            self._reasoning.collapsed = not self._reasoning.collapsed if folded is None else folded

    def show_head(self, message: Message) -> None:
        """Shows other siblings."""
        self.message = message
        self.put(0, _head(message))

    def show_end(self, finish_reason: str | None, stats: Mapping[str, Any]) -> None:
        """How the answer ended, and its figures."""
        if self.growing:
            return
        ended = "cut off when the program ended" if finish_reason is None else ""
        parts = [ended or _ENDS.get(finish_reason or "", ""), *figures_of(stats)]
        text = " · ".join(part for part in parts if part)
        self._show_foot(text)

    def _show_foot(self, text: str) -> None:
        if self._foot is not None:
            self.cut(len(self.items) - 1)
            self._foot = None
        if text:
            self._foot = Part(Content(text), look="message--foot")
            self.put(len(self.items), self._foot)

    def action_wanted(self, what: str) -> None:
        """An action of the table of keys, or what was clicked."""
        self.post_message(self.Wanted(self, what))

    def action_to_previous(self) -> None:
        self.screen.focus_previous(MessageView)

    def action_to_next(self) -> None:
        self.screen.focus_next(MessageView)


class Notice(Static):
    """A remark of the program between the messages: an error, or a note. lasts: it stays while
    messages beside it are taken away."""

    def __init__(
        self, text: str, hint: str = "", *, error: bool = False, lasts: bool = False
    ) -> None:
        self.lasts = lasts
        line = Content.assemble(("error: " if error else "note: ", "bold"), escape(text[:2000]))
        if hint:
            line = line.append("\n").append(
                Content.assemble(("hint: ", "bold"), escape(hint[:2000]))
            )
        super().__init__(line, classes="notice" + (" error" if error else ""))

    @classmethod
    def of(cls, error: LocalLLMError) -> Notice:
        """What an error says."""
        return cls(error.message, error.hint or "", error=True)
