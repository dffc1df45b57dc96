"""The chat screen: where the other screens and panels are reached from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.worker import WorkerCancelled, WorkerFailed

from localllm.errors import LocalLLMError
from localllm.plain_text import escape_line
from localllm.tui.answering import Answering
from localllm.tui.dialogue import asked, parameters
from localllm.tui.keys import bindings
from localllm.tui.live import History, Sampler
from localllm.tui.screens.chat_actions import Actions
from localllm.tui.widgets.answer import CodeBlock
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.live_bar import LiveBar
from localllm.tui.widgets.message import MessageView

if TYPE_CHECKING:
    from localllm.tui.conversations.kinds import Message
    from localllm.tui.opening import AnySession, Described
    from localllm.tui.widgets.sidebar import Sidebar

_LIVE_S = 0.5
_WIDE = 100
"""Cells from which the list of conversations stays beside the messages."""


class ChatScreen(Actions):
    """The screen that is always there."""

    BINDINGS = bindings("everywhere")

    def __init__(self, conversation: int | None = None) -> None:
        super().__init__(conversation)
        self.history = History()
        self._sampler = Sampler()
        self._live = LiveBar()
        self._is_wide = False
        self._beside = True  # the list of conversations, where there is room

    def compose(self) -> ComposeResult:
        with Vertical(id="main"):
            yield self._title
            yield self.transcript
            yield self._status
            yield self.composer
            yield self._live
        yield KeyLine()

    async def on_mount(self) -> None:
        self.set_interval(_LIVE_S, self._watch)
        self._fit(self.app.size.width)

    def on_resize(self, event: events.Resize) -> None:
        self._fit(event.size.width)

    def _fit(self, width: int) -> None:
        """On a narrow screen the list of conversations makes room, unless it is in use."""
        was, self._is_wide = self._is_wide, width >= _WIDE
        if self._is_wide and not was and self._beside:
            self.call_after_refresh(self._show_sidebar)
        elif was and not self._is_wide and not self._focused_sidebar() and self.sidebar:
            self.sidebar.display = False

    # ---- conversations

    def action_stop(self) -> None:
        """In the list of conversations, out of what is entered there first."""
        sidebar = self._focused_sidebar()
        if sidebar is not None:
            sidebar.action_leave()
        else:
            super().action_stop()

    def action_page(self, pages: int) -> None:
        """Of the list of conversations, where that has the focus."""
        sidebar = self._focused_sidebar()
        if sidebar is not None:
            sidebar.page(pages)
        else:
            super().action_page(pages)

    def _focused_sidebar(self) -> Sidebar | None:
        sidebar, focused = self.sidebar, self.focused
        if sidebar is None or focused is None or not sidebar.display:
            return None
        return sidebar if sidebar in focused.ancestors_with_self else None

    @property
    def sidebar(self) -> Sidebar | None:
        """The list of conversations, once it was shown."""
        found = self.query("Sidebar")
        return cast("Sidebar", found.first()) if found else None

    async def _show_sidebar(self) -> Sidebar:
        sidebar = self.sidebar
        if sidebar is None:
            from localllm.tui.widgets.sidebar import Sidebar

            sidebar = Sidebar(self.app.store, id="sidebar")
            sidebar.current = self.conversation.id if self.conversation else None
            await self.mount(sidebar, before="#main")
        sidebar.display = True
        return sidebar

    async def action_sidebar(self) -> None:
        sidebar = self._focused_sidebar()
        self._beside = sidebar is None
        if sidebar is not None:
            self._leave_sidebar(sidebar, hide=True)
        else:
            (await self._show_sidebar()).list.focus()

    async def run_at(self, where: str, action: str) -> None:
        """An action of the table of keys at another place: the list of conversations, the message
        or the code that has the focus, else the last one."""
        target: Widget | None = self.focused
        if where == "list":
            sidebar = await self._show_sidebar()
            with contextlib.suppress(WorkerFailed, WorkerCancelled):
                await sidebar.reload().wait()
            target = sidebar.list
        else:
            kind = MessageView if where == "message" else CodeBlock
            if not isinstance(target, kind):
                target = next(iter(list(self.transcript.query(kind))[::-1]), None)
        if target is None:
            self.app.notify("There is none here", timeout=3)
        else:
            target.focus()
            await target.run_action(action)

    def _leave_sidebar(self, sidebar: Sidebar, *, hide: bool) -> None:
        sidebar.display = not hide
        self.composer.editor.focus()

    def changed(self) -> None:
        if (sidebar := self.sidebar) is not None:
            sidebar.current = self.conversation.id if self.conversation else None
            sidebar.reload()

    async def on_sidebar_chosen(self, event: Sidebar.Chosen) -> None:
        event.stop()
        await self.show_conversation(event.conversation)
        if (sidebar := self.sidebar) is not None:
            self._leave_sidebar(sidebar, hide=self.app.size.width < _WIDE)

    def on_sidebar_changed(self, event: Sidebar.Changed) -> None:
        event.stop()
        self.renew()
        self.show_lines()

    async def on_sidebar_deleted(self, event: Sidebar.Deleted) -> None:
        event.stop()
        self.give_back(event.conversation)  # asked, what waits there would bring it back
        if self.shows(event.conversation):
            await self.show_conversation(None)

    def on_sidebar_export_wanted(self, event: Sidebar.ExportWanted) -> None:
        event.stop()
        self.export(event.conversation)

    def on_sidebar_left(self, event: Sidebar.Left) -> None:
        event.stop()
        if (sidebar := self.sidebar) is not None:
            self._leave_sidebar(sidebar, hide=self.app.size.width < _WIDE)

    def action_search(self, text: str = "") -> None:
        from localllm.tui.conversations.kinds import Hit
        from localllm.tui.screens.search import SearchScreen

        async def found(hit: Hit | None) -> None:
            if hit is not None:
                await self.show_conversation(hit.conversation, at=hit.message)

        self.app.push_screen(SearchScreen(self.app.store, text), found)

    def action_export(self, path: str = "") -> None:
        if self.conversation is not None:
            self.export(self.conversation.id, path)

    def export(self, conversation: int, path: str = "") -> None:
        """Asks where to, and writes a conversation to a file."""
        from localllm.tui.screens.transfer import ExportScreen

        def done(written: Path | None) -> None:
            if written is not None:
                self.app.notify(f"Exported {escape_line(str(written))}", markup=False)

        try:
            opened = self.app.store.open(conversation, 1)
        except LocalLLMError as e:
            self.say(e)
            return
        self.app.push_screen(ExportScreen(self.app.store, opened.conversation, path), done)

    def action_import(self) -> None:
        from localllm.tui.conversations.importing import Imported
        from localllm.tui.screens.transfer import ImportScreen

        def done(imported: Imported | None) -> None:
            if imported is not None:
                n = len(imported.conversations)
                notes = "".join(f"\n{escape_line(note)}" for note in imported.notes[:5])
                self.app.notify(
                    f"Imported {n:,} conversation{'' if n == 1 else 's'}{notes}", markup=False
                )
                self.changed()

        self.app.push_screen(ImportScreen(self.app.store), done)

    # ---- what is asked of answers

    def action_parameters(self) -> None:
        from localllm.tui.presets import Presets, Wishes
        from localllm.tui.screens.parameters import ParametersScreen

        conversation, session = self.renew(), self.app.session
        described = self.app.described

        def done(wishes: Wishes | None) -> None:
            if wishes is not None:
                self.app.store.change(
                    conversation.id, system=wishes.system, params=dict(wishes.params),
                    think=wishes.think,
                )  # fmt: skip

        self.app.push_screen(
            ParametersScreen(
                Wishes(conversation.system, conversation.params, conversation.think),
                Presets(self.app.config),
                own_system=described.system if described else "",
                usual={
                    **(session.info.recommended if session else {}),
                    **(described.sampling if described else {}),
                },
                can_think=session.info.can_think if session else True,
            ),
            done,
        )

    # ---- figures

    def _watch(self) -> None:
        moment = self._sampler.take(
            self.app.session,
            model=self.app.model_label,
            answering=self.answering is not None,
            pulls=self.app.pull_line,
        )
        self.history.add(moment)
        self._live.show(moment)

    def ended(self, answering: Answering, reason: str) -> None:
        self.history.add_answer(answering.session, self.app.model_label, reason)

    def on_live_bar_pressed(self, event: LiveBar.Pressed) -> None:
        event.stop()
        self.action_figures()

    def action_figures(self) -> None:
        from localllm.tui.screens.figures import FiguresScreen

        self.app.push_screen(FiguresScreen(self.history))

    # ---- models

    def action_models(self) -> None:
        from localllm.tui.screens.models import Choice, ModelsScreen

        def chosen(choice: Choice | None) -> None:
            if choice is not None:
                self.app.load(choice.name, choice.options)

        app = self.app
        self.app.push_screen(
            ModelsScreen(app.library, app.pulls, current=app.model or None, options=app.options),
            chosen,
        )

    def action_compare(self) -> None:
        from localllm.tui.compared import Compared
        from localllm.tui.comparing import Asked
        from localllm.tui.screens.compare import CompareScreen

        if self.answering is not None:
            self.app.notify("An answer is on its way: Esc stops it", timeout=3)
            return
        conversation = self.renew()
        kept = Compared(self.app.store, conversation.id)

        def prepare(question: Message, session: AnySession, described: Described) -> Asked:
            messages = asked(conversation, (*kept.path, question), described)
            return messages, parameters(conversation, session, described, {}), conversation.think

        screen = CompareScreen(
            self.app.opener,
            prepare,
            kept,
            options=self.app.options,
            names=(self.app.model, ""),
            question=self.composer.text,
            attached=self.composer.attached,
        )

        async def done(chosen: str | None) -> None:
            if kept.has_answers:
                await self._show_compared(conversation.id, screen.asked)
            if chosen is not None and chosen != self.app.model:
                self.app.load(chosen)
            elif chosen is None and kept.has_answers:
                self.app.notify("The answers are branches here: F7 takes them back", timeout=5)

        self.app.push_screen(screen, done)

    async def _show_compared(self, conversation: int, questions: Sequence[str]) -> None:
        """Answers of a comparison have become part of a conversation."""
        if not self.shows(conversation):
            return
        if self.composer.text in questions:
            self.composer.take()
        self.renew()
        await self.reopen()
