"""Two models side by side on one question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Select, Static

from localllm.errors import LocalLLMError
from localllm.plain_text import escape, escape_line
from localllm.tui.compared import Compared
from localllm.tui.comparing import (
    ANSWERING,
    FAILED,
    LOADING,
    WAITING,
    Comparison,
    Prepare,
    Side,
)
from localllm.tui.conversations.kinds import Attachment
from localllm.tui.dialogue import figures_of, kept_figures, taken_in
from localllm.tui.model_texts import error_text
from localllm.tui.opening import LoadOptions, Opener
from localllm.tui.screens.own_keys import KeyedScreen
from localllm.tui.widgets.answer import Answer
from localllm.tui.widgets.field import Field
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.live_bar import bar
from localllm.tui.widgets.message import Reasoning

EVERY_S = 0.1  # at most ten redraws a second
_TOGETHER = "Both at once: each is slower than it would be alone"
_IN_TURN = "One after the other: the memory has no room for both at once"


class CompareScreen(KeyedScreen[str | None]):
    """Ends with the name of the model to go on with, or with None. What is answered is kept as it
    comes, whatever it ends with."""

    TITLE = "Compare two models"
    AUTO_FOCUS = "#question"
    DEFAULT_CSS = """
    CompareScreen #question { height: 1; border: none; padding: 0 1; background: $panel; }
    CompareScreen #sides { height: 1fr; layout: vertical; }
    CompareScreen.-wide #sides { layout: horizontal; }
    CompareScreen SideView { height: 1fr; width: 1fr; }
    CompareScreen.-wide #left { border-right: solid $primary; }
    CompareScreen #said { height: 1; padding: 0 1; color: $text-muted; }
    SideView .head { height: 1; background: $boost; }
    SideView Select { width: 1fr; }
    SideView Button { min-width: 8; }
    SideView VerticalScroll { height: 1fr; padding: 0 1; }
    SideView .figures { height: auto; padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5", "ask", "Ask"),
        Binding("escape", "back", "Stop or back", priority=True),
        Binding("f2", "choose(0)", "Take the first"),
        Binding("f3", "choose(1)", "Take the second"),
    ]

    class Named(Message):
        """The models that can be asked."""

        def __init__(self, names: Sequence[str]) -> None:
            super().__init__()
            self.names = list(names)

    class NotNamed(Message):
        """Nobody says which models there are."""

        def __init__(self, error: LocalLLMError) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self,
        opener: Opener,
        prepare: Prepare,
        kept: Compared,
        *,
        options: LoadOptions | None = None,
        names: tuple[str, str] = ("", ""),
        question: str = "",
        attached: Sequence[Attachment] = (),
    ) -> None:
        """prepare: makes messages and parameters of a question. kept: where it goes, and the
        answers. names: the models to begin with, empty for any. attached: goes with every
        question."""
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide")]
        self._opener, self._prepare, self._kept = opener, prepare, kept
        self._options, self._names = options or LoadOptions(), names
        self._question = question  # may have more lines than the field shows
        self._shown = escape_line(" ".join(question.split()))
        self._attached = tuple(attached)
        self.asked: list[str] = []  # questions, as they were typed
        self.comparison: Comparison | None = None
        self.views = [SideView(id="left"), SideView(id="right")]
        self._phase = ""

    def compose(self) -> ComposeResult:
        yield Field(
            self._shown, placeholder="One question to both; Enter asks",
            id="question", compact=True,
        )  # fmt: skip
        with Horizontal(id="sides"):
            yield from self.views
        names = ", ".join(each.name for each in self._attached)
        yield Static(Content(escape_line(names and f"With {names}")), id="said", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        self.run_worker(self._read_names, thread=True)
        self.set_interval(EVERY_S, self._draw)

    def on_unmount(self) -> None:
        if self.comparison is not None:
            self.comparison.stop()
            for at, (view, side) in enumerate(zip(self.views, self.comparison.sides, strict=True)):
                if not view.ended:  # the program is left: what is there stays
                    if side.answering is not None:
                        side.answering.take()
                    self._keep(at, side, ended=True)

    def _read_names(self) -> None:
        try:
            self.post_message(self.Named(self._opener.names()))
        except LocalLLMError as e:
            self.post_message(self.NotNamed(e))

    def on_compare_screen_named(self, message: Named) -> None:
        names = message.names
        for wanted in self._names:
            if wanted and wanted not in names:  # a file of the user's own
                names = [*names, wanted]
        left = self._names[0] or (names[0] if names else "")
        right = self._names[1] or next((name for name in names if name != left), left)
        for view, name in zip(self.views, (left, right), strict=True):
            view.offer(names, name)

    def on_compare_screen_not_named(self, message: NotNamed) -> None:
        self._say(error_text(message.error))

    def _say(self, text: str) -> None:
        self.query_one("#said", Static).update(Content(escape_line(text)))

    # What the user does.

    @on(Input.Submitted, "#question")
    async def action_ask(self) -> None:
        """Asks both, unless they answer already."""
        typed = self.query_one("#question", Input).value
        question = self._question if typed == self._shown else typed.strip()
        left, right = (view.name_chosen for view in self.views)
        if self.comparison is not None and not self.comparison.is_over:
            self._say("Both are asked already; Esc stops them")
        elif not question.strip():
            self._say("Type a question first")
        elif not left or not right:
            self._say("Choose two models first")
        else:
            await self._begin(question, (left, right))

    async def _begin(self, question: str, names: tuple[str, str]) -> None:
        try:
            words, extra = taken_in(question)
        except LocalLLMError as e:
            self._say(error_text(e))
            return
        self.comparison, self._phase = None, ""  # nothing more of it is drawn
        for view in self.views:
            await view.clear()
        self.asked.append(question)
        kept = self._kept.begin(words, (*self._attached, *extra), names)
        self.comparison = Comparison(self._opener, names, kept, self._prepare, self._options)
        self.comparison.start()

    def action_back(self) -> None:
        """Closes a list of models that is open, else stops answers that run, else leaves."""
        if found := [each for each in self.query(Select).results(Select) if each.expanded]:
            found[0].expanded = False
            found[0].focus()
        elif self.comparison is not None and not self.comparison.is_over:
            self.comparison.stop()
            self._say("Stopping")
        else:
            self.dismiss(None)

    def action_choose(self, at: int) -> None:
        view = self.views[at]
        if self.comparison is None or not (view.ended and view.answer.source):
            self._say("There is no finished answer to go on with")
        else:
            self._kept.choose(at)
            self.dismiss(self.comparison.sides[at].name)

    @on(Button.Pressed)
    def _taken(self, event: Button.Pressed) -> None:
        view = next((v for v in self.views if event.button in v.walk_children()), None)
        if view is not None:
            self.action_choose(self.views.index(view))

    # What is drawn, ten times a second at most.

    async def _draw(self) -> None:
        comparison = self.comparison
        if comparison is None:
            return
        was_over = comparison.is_over  # before the last piece is taken
        for at, (view, side) in enumerate(zip(self.views, comparison.sides, strict=True)):
            if not view.ended and await view.show(side):
                self._keep(at, side, ended=view.ended)
        phase = ""
        if was_over:
            phase = "F2 or F3 goes on with an answer; Enter asks again"
        elif comparison.together is not None:
            phase = _TOGETHER if comparison.together else _IN_TURN
        if phase != self._phase:  # else what was said last stays
            self._phase = phase
            self._say(phase)

    def _keep(self, at: int, side: Side, *, ended: bool) -> None:
        if ended:
            self._kept.end(
                at, *side.words, finish_reason=side.ended_by, stats=kept_figures(side.stats)
            )
        else:
            self._kept.grow(at, *side.words)


class SideView(Vertical):
    """One model's part of the screen."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.ended = False
        self.answer = Answer()
        self._reasoning: Reasoning | None = None
        self.figures = ""

    def compose(self) -> ComposeResult:
        with Horizontal(classes="head"):
            yield Select[str]([], prompt="model", compact=True)
            yield Button("take", compact=True)
        with VerticalScroll():
            yield Static("", classes="state", markup=False)
            yield self.answer
        yield Static("", classes="figures", markup=False)

    def offer(self, names: Sequence[str], chosen: str) -> None:
        choices: Select[str] = self.query_one(Select)
        choices.set_options((Content(escape_line(name)), name) for name in names)
        if chosen in names:
            choices.value = chosen

    @property
    def name_chosen(self) -> str:
        value = self.query_one(Select).value
        return value if isinstance(value, str) else ""

    async def clear(self) -> None:
        """Makes room for another answer."""
        self.ended, self._reasoning = False, None
        scroll = self.query_one(VerticalScroll)
        await scroll.query("Reasoning, Answer").remove()
        self.answer = Answer()
        await scroll.mount(self.answer)
        scroll.anchor(False)

    async def show(self, side: Side) -> bool:
        """Draws what has come since the last time; whether something has, or it is over."""
        over = side.is_over  # read before the last piece, so that nothing is missed
        piece = side.answering.take() if side.answering is not None else None
        answer = self.answer
        if piece is not None and piece.reasoning:
            if self._reasoning is None:
                self._reasoning = Reasoning(running=True)
                await self.query_one(VerticalScroll).mount(self._reasoning, before=answer)
            await self._reasoning.add(piece.reasoning)
        if piece is not None and piece.text:
            await answer.add(piece.text)
        if self._reasoning is not None and (over or answer.source):
            await self._reasoning.end()
        if piece is not None and piece.finish_reason:
            side.finish_reason = piece.finish_reason
        self.query_one(".state", Static).update(Content(_state(side)))
        stats = side.stats
        if not over and side.answering is not None:
            stats = side.answering.session.stats
        self.figures = " · ".join([side.state, *figures_of(kept_figures(stats))])
        self.query_one(".figures", Static).update(Content(self.figures))
        if over:
            self.ended = True
            await answer.end()
        scroll = self.query_one(VerticalScroll)
        if scroll.max_scroll_y and not scroll.is_anchored:  # before, it would stand at the bottom
            scroll.anchor()
        return over or (piece is not None and bool(piece.text or piece.reasoning))


def _state(side: Side) -> str:
    """What stands above the answer."""
    if side.state == WAITING:
        return "waiting"
    if side.state == LOADING:
        return f"loading {bar(side.share, 10)} {side.share:.0%}"
    if side.state == FAILED and side.error is not None:
        return escape(f"error: {error_text(side.error)}")
    answering = side.answering
    if side.state == ANSWERING and answering is not None and not answering.text:
        thought = answering.reasoning[-200:].strip().rpartition("\n")[2]
        return escape_line(f"reasoning: {thought}") if thought else "reading the question"
    return ""
