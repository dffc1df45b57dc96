"""Questions that wait: for the answer that runs to end, or for a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from localllm.errors import ArgumentError
from localllm.tui.app import ChatApp, short_label
from localllm.tui.conversations.kinds import Attachment
from localllm.tui.queued import Question
from localllm.tui.screens.talk import Talk


class Waiting(Talk):
    """Asks them in their own conversations, whichever is shown then."""

    async def send(self, text: str, attached: Sequence[Attachment]) -> None:
        """A question in the conversation that is shown: asked at once, or as soon as it can be."""
        question = Question(self.renew().id, text, tuple(attached))
        free = self.answering is None and not self.turning and not self.queued
        if free and self.app.can_answer:
            self.turning = True
            try:
                await self._ask(question)
            finally:
                self.turning = False
            return
        self.queued.append(question)
        self.keep_draft()
        self.show_lines()
        if not self.app.can_answer and not self.app.loading:
            self.open_again()

    async def _ask(self, question: Question) -> None:
        self.kept(question.conversation)
        path = self.app.store.path(question.conversation)
        parent = path[-1].id if path else None
        await self.ask(parent, question.text, question.attached, question.conversation)

    async def next_question(self) -> None:
        """Asks what waits longest; the next one if that cannot be answered, as is said."""
        while self.queued and self.answering is None and self.app.can_answer:
            conversation = self.queued[0].conversation
            typed = self._typed(conversation)
            await self._ask(self.queued.pop(0))
            self._keep(conversation, typed)
            if self.answering is None:
                self.give_back(conversation)
            self.show_lines()
        lost = self.app.session is not None and not self.app.can_answer
        if self.queued and self.answering is None and lost and not self.app.loading:
            self.open_again()

    def take_back(self) -> bool:
        """The last question that waits here, to where one types; whether there was one."""
        assert self.conversation is not None
        waiting = self.queued.of(self.conversation.id)
        if waiting:
            self.queued.remove(waiting[-1])
            typed = self.composer.text
            text = "\n\n".join(part for part in (waiting[-1].text, typed) if part)
            self.composer.show(text, (*waiting[-1].attached, *self.composer.attached))
            self.keep_draft()
        return bool(waiting)

    def give_back(self, conversation: int) -> None:
        """What waits in a conversation stands where one types there, and is sent by hand."""
        waiting = self.queued.of(conversation)
        if not waiting:
            return
        if not self.shows(conversation):  # its draft holds it already
            self.queued[:] = [each for each in self.queued if each.conversation != conversation]
            return
        typed = self._typed(conversation)
        self.queued[:] = [each for each in self.queued if each.conversation != conversation]
        text = "\n\n".join(part for part in (*(each.text for each in waiting), typed) if part)
        attached = tuple(part for each in waiting for part in each.attached)
        if self.editing is not None:
            self.stashed = (text, (*attached, *self.stashed[1]))
        else:
            self.composer.show(text, (*attached, *self.composer.attached))
        self.keep_draft()

    def keep_draft(self) -> None:
        """Keeps what waits in the conversation that is shown, and what is typed there."""
        if self.conversation is not None:
            self._keep(self.conversation.id, "")

    def _keep(self, conversation: int, typed: str) -> None:
        if self.shows(conversation):
            typed = self._typed(conversation)
        self.app.store.change(conversation, draft=self.queued.draft(conversation, typed))

    def _typed(self, conversation: int) -> str:
        """What is typed in a conversation and not sent."""
        if self.shows(conversation):
            return self.stashed[0] if self.editing is not None else self.composer.text
        try:
            draft = self.app.store.open(conversation, 1).conversation.draft
        except ArgumentError:  # another program deleted it
            return ""
        return self.queued.typed(conversation, draft)

    # ---- the model

    def open_again(self, then: Callable[[], Awaitable[object]] | None = None) -> None:
        """Opens the model that there was, or shows the models. then: what is done when it is open,
        if the conversation that is shown now is shown then, too."""
        assert self.conversation is not None
        shown = self.conversation.id

        async def if_shown() -> None:
            if then is not None and self.shows(shown):
                await then()

        self._when_open = if_shown
        self.app.open_again()

    def on_chat_app_loading(self, event: ChatApp.Loading) -> None:
        self._load_line = f"loading {short_label(event.label)[:60]} {event.share:4.0%}"
        self.show_lines()

    async def on_chat_app_loaded(self, event: ChatApp.Loaded) -> None:
        self._load_line = ""
        if self.conversation is not None:
            self.app.store.change(self.conversation.id, model=self.app.model)
        self.show_lines()
        if then := self._when_open:
            self._when_open = None
            await then()
        await self.next_question()

    def on_chat_app_load_failed(self, event: ChatApp.LoadFailed) -> None:
        self._load_line, self._when_open = "", None
        if not event.error.hint:
            event.error.hint = "Ctrl+O shows the models that are here."
        self.say(event.error)
        for question in list(self.queued):
            self.give_back(question.conversation)
        self.show_lines()

    def on_chat_app_said(self, event: ChatApp.Said) -> None:
        self.say_line(event.text)
