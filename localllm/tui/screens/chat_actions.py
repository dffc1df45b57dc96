"""What the keys, the mouse and the commands of the chat do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from localllm import slash
from localllm.errors import LocalLLMError
from localllm.plain_text import escape_line
from localllm.tui.conversations.kinds import Attachment, Message
from localllm.tui.dialogue import last_question, taken_in
from localllm.tui.screens.talk import NOTHING
from localllm.tui.screens.waiting import Waiting
from localllm.tui.widgets.answer import CodeBlock
from localllm.tui.widgets.composer import Composer
from localllm.tui.widgets.message import MessageView

if TYPE_CHECKING:
    from localllm.tui.screens.chat import ChatScreen

_SUFFIXES = {
    "python": "py", "py": "py", "javascript": "js", "js": "js", "typescript": "ts", "ts": "ts",
    "bash": "sh", "sh": "sh", "shell": "sh", "c": "c", "cpp": "cpp", "c++": "cpp", "rust": "rs",
    "go": "go", "java": "java", "json": "json", "yaml": "yaml", "toml": "toml", "html": "html",
    "css": "css", "sql": "sql", "markdown": "md", "md": "md", "xml": "xml", "ruby": "rb",
}  # fmt: skip


class Actions(Waiting):
    """A conversation that follows its keys."""

    # ---- keys everywhere

    def action_help(self) -> None:
        from localllm.tui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen())

    def action_stop(self) -> None:
        """One thing at a time, the nearest first."""
        if self.composer.dismiss_offers():
            return
        if self.editing is not None:
            self.leave_edit()
        elif self.answering is not None:
            self.answering.stop()
        elif not self.take_back():
            self.clear_selection()
            self.composer.editor.focus()
        self.show_lines()

    def action_interrupt(self) -> None:
        if self.answering is not None:
            self.answering.stop()
            self.show_lines()
        elif text := self.composer.editor.selected_text or self.get_selected_text():
            self.copy(text)
        else:
            self.app.notify("Ctrl+Q leaves", timeout=2)

    async def action_new_chat(self) -> None:
        await self.show_conversation(None)
        self.composer.editor.focus()

    def ready(
        self, *, to_answer: bool = True, then: Callable[[], Awaitable[object]] | None = None
    ) -> bool:
        """Whether the conversation can be changed now, and answered; else it is said. then: what is
        done when a model that has to be opened again is open."""
        if self.answering is not None or self.turning:
            self.app.notify("An answer is on its way: Esc stops it", timeout=3)
        elif to_answer and not self.app.can_answer:
            if self.app.loading:
                self.app.notify("The model is being loaded", timeout=3)
            else:
                self.open_again(then)
        else:
            return True
        return False

    async def action_regenerate(self) -> None:
        question = last_question(self.path())
        if question is not None:
            await self.regenerate(question.id)

    async def action_continue(self) -> None:
        path = self.path()
        if path and path[-1].role == "assistant" and self.ready(then=self.action_continue):
            await self.go_on(path[-1])

    async def action_undo(self) -> None:
        question = last_question(self.path())
        if question is not None:
            await self.undo(question)

    def action_edit_last(self) -> None:
        question = last_question(self.path())
        if question is not None:
            self.edit(question)

    def action_to_messages(self) -> None:
        if views := self.transcript.views:
            views[-1].focus()

    def action_page(self, pages: int) -> None:
        if pages == -9:
            if self.transcript.scroll_y > 1:
                self.transcript.scroll_home(animate=False)
            else:
                self.transcript.want_earlier()
        elif pages == 9:
            self.transcript.follow()
        elif pages < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    # ---- messages

    async def on_message_view_wanted(self, event: MessageView.Wanted) -> None:
        event.stop()
        message, what = event.view.message, event.what
        if what == "copy":
            self.copy(message.content)
        elif what == "reasoning":
            event.view.fold()
        elif what in ("older", "newer"):
            await self.walk(message, 1 if what == "newer" else -1)
        elif what == "edit":
            self.edit(message)
        elif what == "undo":
            await self.undo(message)
        elif what == "continue":
            then = partial(self.go_on, message)
            if message.role == "assistant" and self.ready(then=then):
                await self.go_on(message)
        elif what == "regenerate":
            parent = message.id if message.role == "user" else message.parent
            if parent is not None:
                await self.regenerate(parent)

    async def regenerate(self, question: int, params: Mapping[str, Any] = NOTHING) -> None:
        """Another answer to a question, with parameters for this once."""
        if not self.ready(then=partial(self.regenerate, question, params)):
            return
        assert self.conversation is not None
        shown = self.conversation.id
        async with self.turns:
            if self.answering is None and self.shows(shown):
                self.app.store.cut(shown, question)
                await self.transcript.cut(question)
                await self.answer_to(question, params)
                self.transcript.follow()

    async def undo(self, message: Message) -> None:
        """Takes a message and all below it back; a question goes to the editor."""
        if not self.ready(to_answer=False):
            return
        assert self.conversation is not None
        self.app.store.cut(self.conversation.id, message.parent)
        await self.transcript.cut(message.parent)
        if message.role == "user" and not self.composer.text:
            self.composer.show(message.content, message.attachments)
        self.composer.editor.focus()

    def edit(self, message: Message) -> None:
        """Puts a message into the editor, to be sent as a new branch."""
        if not self.ready(to_answer=False):
            return
        if self.editing is None:
            self.stashed = (self.composer.text, self.composer.attached)
        self.editing = message
        self.composer.show(message.content, message.attachments)
        self.composer.editor.focus()
        self.show_lines()

    async def walk(self, message: Message, step: int) -> None:
        """The branch before or after that of a message."""
        place = message.place + step
        if not 0 <= place < len(message.siblings) or not self.ready(to_answer=False):
            return
        assert self.conversation is not None
        try:
            self.app.store.select(self.conversation.id, message.siblings[place])
        except LocalLLMError as e:
            self.say(e)
            return
        await self.reopen()
        if view := await self.transcript.reveal(message.siblings[place]):
            view.focus()

    # ---- sending

    async def on_composer_submitted(self, event: Composer.Submitted) -> None:
        event.stop()
        await self.submit(event.text, event.attachments)

    async def submit(self, text: str, attached: tuple[Attachment, ...]) -> None:
        """What was typed, and taken: a command, an edited message, or a question. It is given back
        where it cannot be sent."""
        command = slash.parse(text)
        if command is not None and not attached and self.editing is None:
            from localllm.tui.screens import chat_commands

            if not await chat_commands.run(cast("ChatScreen", self), *command):
                self.composer.give_back(text)  # to be put right
            return
        if self.editing is not None and not self.ready(to_answer=self.editing.role == "user"):
            self.composer.give_back(text, attached)
            return
        try:
            words, extra = taken_in(text)
        except LocalLLMError as e:
            self.say(e)
            self.composer.give_back(text, attached)
            return
        editing, self.editing = self.editing, None
        parts = (*attached, *extra)
        if editing is None:
            await self.send(words, parts)
            return
        self.composer.give_back(*self.stashed)
        if editing.role == "user":
            await self.ask(editing.parent, words, parts, editing.conversation)
        else:
            assert self.conversation is not None
            self.app.store.add(
                self.conversation.id, editing.parent, "assistant", words, model=editing.model
            )
            await self.reopen()

    def on_composer_changed(self, event: Composer.Changed) -> None:
        event.stop()
        self.keep_draft()

    # ---- copying and saving

    def copy(self, text: str) -> None:
        """To the clipboard, as the terminal does it."""
        self.app.copy_to_clipboard(text)
        self.app.notify(f"Copied {len(text):,} characters", timeout=2)

    def on_code_block_wanted(self, event: CodeBlock.Wanted) -> None:
        event.stop()
        code = event.block.code
        if event.what == "copy":
            self.copy(code)
            return
        from localllm.tui.screens.save import SaveScreen

        name = f"code.{_SUFFIXES.get(event.block.language.lower(), 'txt')}"

        def saved(path: Path | None) -> None:
            if path is not None:
                self.app.notify(f"Saved {escape_line(str(path))}", timeout=3, markup=False)

        self.app.push_screen(SaveScreen("this code", name, code), saved)
