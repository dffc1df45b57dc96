"""How a model is to be loaded: the type of its cache, its context, and what that takes."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Static

from localllm.plain_text import size_text
from localllm.tui.opening import LoadOptions
from localllm.tui.outlook import Outlook
from localllm.tui.widgets.field import Field

KV_TYPES = ("f16", "q8_0")
LEAST_CONTEXT, MOST_CONTEXT = 256, 2**24


class LoadOptionsBar(Horizontal):
    """One line. `show` tells it which model the figures are of."""

    DEFAULT_CSS = """
    LoadOptionsBar { height: 1; padding: 0 1; background: $panel; }
    LoadOptionsBar Static { width: auto; }
    LoadOptionsBar #kv { min-width: 12; }
    LoadOptionsBar #context {
        width: 10; height: 1; border: none; padding: 0 1; margin: 0 1; background: $surface;
    }
    LoadOptionsBar #takes { width: 1fr; margin-left: 1; }
    """

    class Done(Message):
        """Enter was pressed in the field."""

    def __init__(self, options: LoadOptions | None = None) -> None:
        super().__init__()
        self.options = options or LoadOptions()
        self._outlook: Outlook | None = None

    def compose(self) -> ComposeResult:
        yield Button(self._label(), id="kv", compact=True)
        yield Static("Context", markup=False)
        yield Field(
            str(self.options.n_ctx or ""), placeholder="auto", id="context", compact=True,
            restrict="[0-9]*", max_length=8,
        )  # fmt: skip
        yield Static("", id="takes", markup=False)

    def _label(self) -> Content:
        return Content(f"KV: {self.options.kv_type}")

    @property
    def problem(self) -> str:
        """Why the context that was typed cannot be, empty if it can."""
        most = (self._outlook.n_trained if self._outlook else 0) or MOST_CONTEXT
        least, n_ctx = min(LEAST_CONTEXT, most), self.options.n_ctx
        if n_ctx and not least <= n_ctx <= most:
            return f"Context: from {least} to {most} tokens, or empty"
        return ""

    def show(self, outlook: Outlook | None) -> None:
        """What the model takes with these options, or what is wrong with them."""
        self._outlook = outlook
        text = self.problem
        if not text and outlook is not None:
            text = takes_text(outlook, self.options)
        self.query_one("#takes", Static).update(Content(text))

    @on(Button.Pressed, "#kv")
    def next_kv_type(self) -> None:
        at = KV_TYPES.index(self.options.kv_type) if self.options.kv_type in KV_TYPES else -1
        following = KV_TYPES[(at + 1) % len(KV_TYPES)]
        self.options = LoadOptions(self.options.n_ctx, following)
        self.query_one("#kv", Button).label = self._label()
        self.show(self._outlook)

    def focus_context(self) -> None:
        self.query_one("#context").focus()

    @on(Input.Changed, "#context")
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.options = LoadOptions(int(event.value or "0"), self.options.kv_type)
        self.show(self._outlook)

    @on(Input.Submitted, "#context")
    def _given(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Done())


def takes_text(outlook: Outlook, options: LoadOptions) -> str:
    """The memory of the nearest plan at least as large, in words."""
    wanted = options.n_ctx or outlook.n_ctx
    plans = [p for p in outlook.plans if p[1] == options.kv_type and p[0] >= wanted]
    if not plans or not wanted:
        return ""
    length, _, n_bytes, fits = min(plans)
    about = "" if length == wanted else "at most "
    return f"{about}{size_text(n_bytes)}, {'fits' if fits else 'too large'}"
