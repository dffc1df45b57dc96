"""A message of a conversation, with what can be done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Collapsible, Static

from localllm.errors import LocalLLMError
from localllm.plain_text import escape, escape_line
from localllm.tui.conversations.kinds import Message
from localllm.tui.dialogue import figures_of
from localllm.tui.keys import bindings
from localllm.tui.widgets.answer import Answer, link

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


class MessageHead(Static):
    """Who speaks, which branch this is, and what the mouse can do."""

    def show(self, message: Message) -> None:
        """Shows what stands above a message."""
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
        self.update(line)

    def action_wanted(self, what: str) -> None:
        """What was clicked."""
        if isinstance(self.parent, MessageView):
            self.parent.action_wanted(what)


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


class MessageView(Vertical, can_focus=True):
    """A message. An answer may still grow."""

    BINDINGS = bindings("message")

    class Wanted(Event):
        """Something is to be done with a message: an action of keys.py."""

        def __init__(self, view: MessageView, what: str) -> None:
            super().__init__()
            self.view, self.what = view, what

    def __init__(self, message: Message, *, growing: bool = False) -> None:
        super().__init__(classes=f"message {message.role}", id=f"message-{message.id}")
        self.message, self.growing = message, growing
        self._head = MessageHead(classes="message-head")
        self._reasoning: Reasoning | None = None
        self._answer: Answer | None = None
        self._foot = Static(classes="message-foot", markup=False)

    def compose(self) -> ComposeResult:
        message = self.message
        self._head.show(message)
        yield self._head
        for attachment in message.attachments:
            kind = "image" if attachment.kind == "image" else f"{len(attachment.text):,} characters"
            yield Static(
                Content(f"⊕ {escape_line(attachment.name[:80])} ({kind})"), classes="attachment"
            )
        if message.reasoning:
            self._reasoning = Reasoning(message.reasoning)
            yield self._reasoning
        if message.role == "assistant":
            self._answer = Answer(message.content, ended=not self.growing)
            yield self._answer
        else:
            yield Static(Content(escape(message.content).expandtabs(4)), classes="question")
        if message.role == "assistant":
            yield self._foot
            self.show_end(message.finish_reason, message.stats)

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
        if reasoning:
            if self._reasoning is None:
                self._reasoning = Reasoning(running=True)
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
        self._head.show(message)
        self.show_end(message.finish_reason, message.stats)

    async def go_on(self) -> None:
        """The answer, which had ended, grows again."""
        self.growing = True
        if self._answer is not None:
            await self._answer.go_on()
        self._foot.display = False

    def fold(self, folded: bool | None = None) -> None:
        """Folds the reasoning or opens it; None: the other of both."""
        if self._reasoning is not None:
            self._reasoning.collapsed = not self._reasoning.collapsed if folded is None else folded

    def show_head(self, message: Message) -> None:
        """Shows other siblings."""
        self.message = message
        self._head.show(message)

    def show_end(self, finish_reason: str | None, stats: Mapping[str, Any]) -> None:
        """How the answer ended, and its figures."""
        if self.growing:
            return
        ended = "cut off when the program ended" if finish_reason is None else ""
        parts = [ended or _ENDS.get(finish_reason or "", ""), *figures_of(stats)]
        text = " · ".join(part for part in parts if part)
        self._foot.update(text)
        self._foot.display = bool(text)

    def action_wanted(self, what: str) -> None:
        """An action of the table of keys."""
        self.post_message(self.Wanted(self, what))

    def action_to_previous(self) -> None:
        self.screen.focus_previous(MessageView)

    def action_to_next(self) -> None:
        self.screen.focus_next(MessageView)


class Notice(Static):
    """A remark of the program between the messages: an error, or a note."""

    def __init__(self, text: str, hint: str = "", *, error: bool = False) -> None:
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
