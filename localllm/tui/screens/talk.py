"""Asking: the messages, the editor, and the answer that is on its way."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localllm.errors import ArgumentError, ContextFullError, LocalLLMError
from localllm.plain_text import escape, escape_line
from localllm.tui.answering import Answering
from localllm.tui.app import ChatApp
from localllm.tui.conversations.kinds import Attachment, Conversation, Message, now
from localllm.tui.dialogue import asked, kept_figures, parameters
from localllm.tui.queued import Queue
from localllm.tui.turns import Turns, in_turn
from localllm.tui.widgets.composer import Composer
from localllm.tui.widgets.message import MessageView, Notice
from localllm.tui.widgets.transcript import Transcript

Typed = tuple[str, tuple[Attachment, ...]]
NOTHING: Mapping[str, Any] = {}
DRAW_S = 0.1
_SHARE = 5
"""An answer is drawn at most so often, and not before so many times the computing time of the last
drawing is over, at most a second."""
_CONTEXT_HINT = (
    "Ctrl+N begins a new conversation, F7 takes the last question back, and a model that is opened "
    "with more context (Ctrl+O) can go on."
)
_DELETED = (
    "This conversation was deleted by another program, or with its file. "
    "What is asked now begins it anew."
)
_STAYS = "What is new stays here, and is saved as soon as it can be."
_KEPT = ("title", "model", "system", "params", "think", "pinned", "tags")


class Talk(Screen[None]):
    """One conversation at a time. An answer goes on when another conversation is shown."""

    app: ChatApp

    def __init__(self, conversation: int | None = None) -> None:
        super().__init__()
        self._begin = conversation
        self.conversation: Conversation | None = None
        self.answering: Answering | None = None
        self.answer: Message | None = None  # what `answering` writes
        self._before, self._thought = "", ""  # what this message and its reasoning held before
        self.turns = Turns()  # for all that changes what is shown: keys, timers, messages, workers
        self.turning = False  # one answer ends, or a question is asked: other tasks run meanwhile
        self.queued = Queue()
        self.editing: Message | None = None
        self.stashed: Typed = ("", ())  # typed before the edit began
        self.transcript, self.composer = Transcript(), Composer()
        self._title, self._status = Static(id="title"), Static(id="status")
        self._load_line = "opening the conversations"
        self._when_open: Callable[[], Awaitable[object]] | None = None
        self._untold: dict[int, list[Notice]] = {}  # of conversations that are not shown
        self._trouble, self._n_notes = "", 0  # what was said of the conversations' file
        self._drawn, self._computed = 0.0, 0.0
        self.n_draws = 0

    async def on_mount(self) -> None:
        self.set_interval(DRAW_S, self.tick)
        self.composer.editor.focus()
        self.show_lines()

    async def on_chat_app_painted(self, event: ChatApp.Painted) -> None:
        await self.show_conversation(self._begin)
        self._load_line = ""
        self.app.begin_load()
        self.show_lines()
        self.app.post_message(ChatApp.Opened())

    def on_screen_resume(self) -> None:
        self.show_lines()

    def leave_edit(self) -> None:
        """Back to what was typed before."""
        if self.editing is not None:
            self.editing = None
            self.composer.show(*self.stashed)

    # ---- which conversation

    @in_turn
    async def show_conversation(
        self, conversation: int | None, at: int | None = None, typed: Typed | None = None
    ) -> None:
        """Shows a conversation, a new one for None; `at`: the message to go to; `typed`: what
        stands where one types, in place of the draft."""
        self.leave_edit()
        self.keep_draft()
        store = self.app.store
        if conversation is None:
            beginning = self.app.beginning
            made = store.create(
                model=self.app.model, system=beginning.system, params=beginning.sampling,
                think=beginning.think,
            )  # fmt: skip
            conversation = made.id
        try:
            opened = store.open_at(at) if at is not None else store.open(conversation)
        except LocalLLMError as e:
            self.say(e)
            return
        self.conversation = opened.conversation
        self.composer.show(
            *(typed or (self.queued.typed(self.conversation.id, opened.conversation.draft),))
        )  # before anything is awaited: what stands there is kept as this one's draft
        await self.transcript.open(
            opened.messages, opened.n_earlier, growing=self.answer.id if self.answer else None
        )
        if at is not None and (view := await self.transcript.reveal(at)):
            view.focus()
        await self.transcript.add(*self._untold.pop(opened.conversation.id, ()))
        self.composer.history = [each.content for each in opened.messages if each.role == "user"]
        self.show_lines()
        self.changed()

    @in_turn
    async def reopen(self, at: int | None = None) -> None:
        """Shows the conversation as it is now."""
        assert self.conversation is not None
        typed = self.composer.text, self.composer.attached
        await self.show_conversation(self.conversation.id, at, typed)

    def shows(self, conversation: int) -> bool:
        """Whether a conversation is the one that is shown."""
        return self.conversation is not None and self.conversation.id == conversation

    def renew(self) -> Conversation:
        """The conversation as it is kept now; begun anew where another program deleted it."""
        assert self.conversation is not None
        store, before = self.app.store, self.conversation
        try:
            self.conversation = store.open(before.id, 1).conversation
        except ArgumentError:
            self.conversation = store.revive(before)
            self.transcript.clear({message.id for message in store.path(before.id)})
            self.say_line(_DELETED)
        if self.conversation.created != before.created:  # a message that was left began it anew
            kept = {name: getattr(before, name) for name in _KEPT}
            store.change(before.id, **kept)
            self.conversation = dataclasses.replace(self.conversation, **kept)
        return self.conversation

    def kept(self, conversation: int) -> Conversation:
        """As `renew`, of any conversation."""
        if self.shows(conversation):
            return self.renew()
        try:
            return self.app.store.open(conversation, 1).conversation
        except ArgumentError:
            moment = now()
            return self.app.store.revive(
                Conversation(conversation, model=self.app.model, created=moment, updated=moment)
            )

    def path(self) -> tuple[Message, ...]:
        """The messages that are shown, as they are kept now."""
        return self.app.store.path(self.renew().id)

    @in_turn
    async def on_transcript_wants_earlier(self, event: Transcript.WantsEarlier) -> None:
        event.stop()
        n_path = len(self.path())
        found = self.app.store.earlier(self.renew().id, event.before)
        known = len(found) + len(self.transcript.views)
        await self.transcript.show_earlier(found, max(0, n_path - known))

    # ---- asking

    @in_turn
    async def ask(
        self,
        parent: int | None,
        text: str,
        attached: Sequence[Attachment],
        conversation: int | None = None,  # None: the one that is shown
    ) -> None:
        """A question below a message, as a sibling of others that are there already."""
        conversation = self.kept(conversation or self.renew().id).id
        question = self.app.store.add(conversation, parent, "user", text, attachments=attached)
        if self.shows(conversation):
            await self.transcript.cut(parent)
            await self.transcript.add(MessageView(self.fresh(question)))
            self.transcript.follow()
            self.renew()
        self.changed()
        await self.answer_to(question.id, conversation=conversation)

    @in_turn
    async def answer_to(
        self, parent: int, once: Mapping[str, Any] = NOTHING, *, conversation: int | None = None
    ) -> None:
        """Begins an answer below a question, which stands last. conversation: its own, if it may
        not be shown."""
        session = self.app.session
        if session is None or self.answering is not None:
            return
        of = self.renew() if conversation is None else self.kept(conversation)
        path = self.app.store.path(of.id)
        try:
            params = parameters(of, session, self.app.described, once)
        except LocalLLMError as e:
            self._tell(Notice.of(e), of.id)
            return
        self.answer = self.app.store.add(
            of.id, parent, "assistant", model=self.app.model_label, finish_reason=None
        )
        self._before = self._thought = ""
        if self.shows(of.id):
            await self.transcript.add(MessageView(self.fresh(self.answer), growing=True))
        messages = asked(of, path, self.app.described)
        self._run(Answering(session, messages, params, of.think))

    @in_turn
    async def go_on(self, message: Message) -> None:
        """Goes on with an answer that was cut."""
        session = self.app.session
        if session is None or self.answering is not None or self.conversation is None:
            return
        conversation = self.renew()
        path = self.app.store.path(conversation.id)
        if not path or path[-1].id != message.id:
            self.app.notify("Only the last answer goes on: others follow this one", timeout=3)
            return
        try:
            params = parameters(conversation, session, self.app.described, NOTHING)
        except LocalLLMError as e:
            self.say(e)
            return
        message = path[-1]  # as it is kept now
        messages = asked(conversation, path, self.app.described)
        self.answer, self._before, self._thought = message, message.content, message.reasoning
        if view := self.transcript.view(message.id):
            await view.go_on()
        self._run(Answering(session, messages, params, conversation.think, go_on=True))

    def _run(self, answering: Answering) -> None:
        assert self.answer is not None
        self.answering = answering
        answering.session.conversation = str(self.answer.conversation)
        self._drawn = 0.0
        self.run_worker(answering.run, thread=True, group="answer", exit_on_error=False)
        self.show_lines()

    # ---- the answer

    async def tick(self) -> None:
        """Draws what has come; at most ten times a second, and less if that takes long."""
        if self.answering is None:
            return
        now, computed = time.monotonic(), time.thread_time()
        wait = min(1.0, max(DRAW_S * 0.9, _SHARE * (computed - self._computed)))
        if now - self._drawn < wait:
            return
        self._drawn, self._computed = now, computed
        await self.draw()

    @in_turn
    async def draw(self) -> None:
        """Takes what has come of the answer, keeps it and shows it."""
        answering, answer = self.answering, self.answer
        if answering is None or answer is None:
            return
        piece = answering.take()
        view = self.transcript.view(answer.id)
        if piece.text or piece.reasoning:
            self.n_draws += 1
            self.app.store.grow(answer.id, *self._whole(answering))
            if view is not None:
                await view.add(piece.text, piece.reasoning)
        if piece.finish_reason is not None:
            await self._finish(answering, answer, piece.finish_reason)
        self.show_lines()

    def changed(self) -> None:
        """Another conversation is shown, or this one is another now: for those who list them."""

    async def next_question(self) -> None:
        """What waits for the end of an answer, or for a model, can be asked."""

    def give_back(self, conversation: int) -> None:
        """What waits in a conversation is not to be asked by itself."""

    def keep_draft(self) -> None:
        """Keeps what is typed and not sent."""

    def ended(self, answering: Answering, reason: str) -> None:
        """An answer has ended: for those who watch."""

    async def _finish(self, answering: Answering, answer: Message, reason: str) -> None:
        self.answering = self.answer = None
        self.turning = True
        try:
            await self._end(answering, answer, reason)
            await self.next_question()
        finally:
            self.turning = False

    async def _end(self, answering: Answering, answer: Message, reason: str) -> None:
        text, reasoning = self._whole(answering)
        view = self.transcript.view(answer.id)
        if answering.stopping and reason == "error":
            reason, answering.error = "cancelled", None
        stats = kept_figures(answering.session.stats)
        self.app.store.finish(answer.id, text, reasoning, finish_reason=reason, stats=stats)
        whole = dataclasses.replace(
            answer, content=text, reasoning=reasoning, finish_reason=reason, stats=stats
        )
        if not text and not reasoning:
            await self._take_back(answer, view)
        elif view is not None:
            await view.end(self.fresh(whole))
        if answering.error is not None:
            self._say_why(answering.error, answer.conversation, lost=answering.session.is_lost)
        self.ended(answering, reason)
        if reason == "stop" and text and (text, reasoning) == (self._before, self._thought):
            self._tell(Notice("The model adds nothing to this answer"), answer.conversation)
        for note in answering.session.notes:
            self._tell(Notice(note), answer.conversation)
        if answering.error is not None or answering.stopping:
            self.give_back(answer.conversation)

    async def _take_back(self, answer: Message, view: MessageView | None) -> None:
        """An answer of which nothing came. The one before it is shown again, if there is one."""
        others = [each for each in self.fresh(answer).siblings if each != answer.id]
        self.app.store.drop(answer.id)
        if others:
            self.app.store.select(answer.conversation, others[-1])
        else:
            self.app.store.cut(answer.conversation, answer.parent)
        if view is not None and others:
            await self.reopen()
        elif view is not None:
            await view.remove()
            self.transcript.refresh(layout=True)

    def _say_why(self, error: LocalLLMError, conversation: int, *, lost: bool) -> None:
        """What ended an answer of a conversation, and what can be done. A server of this machine
        that has gone is no loss: its model is opened again, here or where another one has it."""
        from localllm.server.client import ServerGoneError

        if isinstance(error, ContextFullError):
            error.hint = _CONTEXT_HINT
        elif isinstance(error, ServerGoneError) and self.app.opener.is_local:
            error.hint = "The model is opened again: then F5 asks again."
            self.app.load(self.app.model)
        elif lost:
            error.hint = "F5 opens the file again and asks again, Ctrl+O opens another model."
        elif not error.hint:
            error.hint = "F5 asks again, Ctrl+O opens another model."
        self._tell(Notice.of(error), conversation)
        if self.conversation is not None and conversation != self.conversation.id:
            self.app.notify(
                escape(f"An answer in another conversation ended: {error.message[:200]}"),
                severity="error", markup=False,
            )  # fmt: skip

    async def end_answer(self) -> None:
        """Ends an answer that runs, and keeps what is there of it."""
        import asyncio

        answering = self.answering
        if answering is None:
            return
        for question in list(self.queued):
            self.give_back(question.conversation)
        answering.stop()
        for _ in range(200):
            await self.draw()
            if self.answering is not answering:
                return
            await asyncio.sleep(0.01)
        if self.answer is not None:  # it does not listen: what is there is kept
            self.app.store.finish(
                self.answer.id, *self._whole(answering), finish_reason="cancelled"
            )

    def _whole(self, answering: Answering) -> tuple[str, str]:
        """Text and reasoning of the message that it writes."""
        return self._before + answering.text, self._thought + answering.reasoning

    # ---- what is said

    def fresh(self, message: Message) -> Message:
        """A message with its siblings, as it is kept now; as it was given where it is not kept, in
        the moment in which the file was removed, say."""
        try:
            opened = self.app.store.open(message.conversation)
        except ArgumentError:  # another program deleted it
            return message
        return next((each for each in opened.messages if each.id == message.id), message)

    def say(self, error: LocalLLMError) -> None:
        """An error, below the messages."""
        self._tell(Notice.of(error))

    def say_line(self, text: str) -> None:
        """A note, below the messages."""
        self._tell(Notice(text))

    def _tell(self, notice: Notice, of: int | None = None) -> None:
        """of: the conversation that it is about, where it waits if another one is shown."""
        if of is None and self.conversation is not None:
            of = self.conversation.id
        self.run_worker(self._show_notice(notice, of), group="say")

    async def _show_notice(self, notice: Notice, of: int | None) -> None:
        """Another conversation may have been shown since it was told."""
        if of is None or self.shows(of):
            await self.transcript.add(notice)
        else:
            self._untold.setdefault(of, []).append(notice)

    def show_lines(self) -> None:
        """The title, and the line above the editor."""
        title = self.conversation.title if self.conversation else ""
        model = self.app.model_label or "no model"
        line = Content(f"{escape_line(title[:200]) or 'New chat'} · {model}")
        # Without a layout, which would go over every message, at each drawing of an answer.
        self._title.update(line, layout=False)
        self._status.update(Content(self._status_line()), layout=False)

    def _status_line(self) -> str:
        parts = []
        if self.editing is not None:
            parts.append("editing: Enter sends it as a new branch, Esc leaves")
        if self._load_line:
            parts.append(self._load_line)
        elif self.app.loading:
            parts.append("looking for models")
        if self.answering is not None:
            done, wanted = self.answering.session.progress_tokens
            if self.answering.stopping:
                parts.append("stopping")
            elif not (self.answering.text or self.answering.reasoning):
                parts.append(f"reading {done:,} of {wanted:,} tokens" if wanted else "reading")
            else:
                parts.append("answering: Esc stops")
        if here := sum(self.shows(each.conversation) for each in self.queued):
            parts.append(f"{here} queued: Esc takes it back")
        if elsewhere := len(self.queued) - here:
            parts.append(f"{elsewhere} queued in other conversations")
        if why := self.app.store.why_not_saved:
            parts.append(f"not saved yet: {escape_line(why)}")
        return " · ".join(parts)

    @in_turn
    async def on_chat_app_store_changed(self, event: ChatApp.StoreChanged) -> None:
        store = self.app.store
        notes = store.notes[self._n_notes :]
        self._n_notes += len(notes)
        if notes and self.conversation is not None:  # it may be another file now
            kept = {message.id for message in self.path()}
            if any(view.message.id not in kept for view in self.transcript.views):
                await self.reopen()
        for note in notes:
            self._tell(Notice(note, lasts=True))  # also where a question comes at this moment
        trouble = store.trouble
        if trouble is not None and trouble.message != self._trouble:
            hint = " ".join(part for part in (trouble.hint, _STAYS) if part)
            self._tell(Notice(trouble.message, hint, error=True))
        self._trouble = trouble.message if trouble else ""
        self.show_lines()
        self.changed()
