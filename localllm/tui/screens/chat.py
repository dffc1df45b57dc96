"""The chat screen: where the other screens and panels are reached from."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Footer

from localllm.tui.answering import Answering
from localllm.tui.keys import bindings
from localllm.tui.live import History, Sampler
from localllm.tui.screens.chat_actions import Actions
from localllm.tui.widgets.live_bar import LiveBar

_LIVE_S = 0.5


class ChatScreen(Actions):
    """The screen that is always there."""

    BINDINGS = bindings("everywhere")

    def __init__(self, conversation: int | None = None) -> None:
        super().__init__(conversation)
        self.history = History()
        self._sampler = Sampler()
        self._live = LiveBar()

    def compose(self) -> ComposeResult:
        with Vertical(id="main"):
            yield self._title
            yield self.transcript
            yield self._status
            yield self.composer
            yield self._live
        yield Footer()

    async def on_mount(self) -> None:
        self.set_interval(_LIVE_S, self._watch)

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
