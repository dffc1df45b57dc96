"""The figures of the live bar over time, and the last answers in a table."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Sparkline, Static

from localllm.plain_text import count_text, escape_line
from localllm.tui.live import FIGURES, AnswerFigures, Figure, History, summary
from localllm.tui.screens.own_keys import KeyedScreen
from localllm.tui.widgets.fitted_table import FittedTable
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.live_bar import seconds_text, speed_text

EVERY_S = 1.0
#: Titles, and cells.
_COLUMNS = {
    "Time": 8,
    "tok/s": 5,
    "First": 6,
    "Prompt": 6,
    "Cached": 6,
    "Answer": 6,
    "End": 9,
    "Model": 16,
}


class FiguresScreen(KeyedScreen[None]):
    """Shows a history while others add to it."""

    TITLE = "Figures"
    DEFAULT_CSS = """
    FiguresScreen .heading { height: 1; padding: 0 1; background: $panel; text-style: bold; }
    FiguresScreen VerticalScroll { height: auto; max-height: 70%; }
    FiguresScreen FigureRow { height: 2; padding: 0 1; }
    FiguresScreen FigureRow Static { height: 1; }
    FiguresScreen Sparkline { height: 1; }
    FiguresScreen DataTable { height: 1fr; min-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("tab", "app.focus_next", "Next part", show=False),
    ]

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history
        self._n_answers = -1
        self._newest: AnswerFigures | None = None

    def compose(self) -> ComposeResult:
        yield Static("Figures of the last ten minutes", classes="heading", markup=False)
        with VerticalScroll():
            for figure in FIGURES:
                yield FigureRow(figure)
        yield Static("The last answers", classes="heading", markup=False)
        yield FittedTable(_COLUMNS, "Model")
        yield KeyLine()

    def on_mount(self) -> None:
        self.update()
        self.set_interval(EVERY_S, self.update)

    def update(self) -> None:
        """Draws what the history holds now."""
        for row in self.query(FigureRow):
            row.show(self._history.values(row.figure))
        table = self.query_one(FittedTable)
        newest = self._history.answers
        if self._n_answers != len(newest) or (newest and self._newest is not newest[0]):
            self._n_answers, self._newest = len(newest), newest[0] if newest else None
            table.clear()
            for answer in newest:
                table.add_row(*cells(answer))

    def action_back(self) -> None:
        self.dismiss()


class FigureRow(Vertical):
    """A line of figures over a line of plot."""

    def __init__(self, figure: Figure) -> None:
        super().__init__()
        self.figure = figure
        self.text = ""

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)
        yield Sparkline([])

    def show(self, values: list[float]) -> None:
        self.text = row_text(self.figure, values, self.app.size.width - 4)
        self.query_one(Static).update(Content(self.text))
        self.query_one(Sparkline).data = list(values)


def row_text(figure: Figure, values: list[float], width: int) -> str:
    """The figures over a plot, in words as far as there is room."""
    found = summary(values)
    head = f"{figure.title} ({figure.unit})"
    if found is None:
        return f"{head:18} nothing yet"
    numbers = [_number(each) for each in (found.last, found.least, found.median, found.most)]
    text = ""
    for middle, gap in (("median", "  "), ("med", " ")):
        words = ("now", "min", middle, "max")
        pairs = gap.join(f"{word} {n}" for word, n in zip(words, numbers, strict=True))
        text = f"{head:18}{gap}{pairs}"
        if len(text) <= width:
            break
    return text


def _number(value: float) -> str:
    if value == int(value) or value >= 1000:
        return count_text(round(value)) if value >= 10_000 else str(round(value))
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def cells(answer: AnswerFigures) -> list[Content]:
    """The row of an answer."""
    texts = (
        answer.at,
        "-" if answer.tokens_per_s is None else speed_text(answer.tokens_per_s),
        seconds_text(answer.first_token_s) if answer.first_token_s else "-",
        str(answer.prompt_tokens),
        str(answer.cached_tokens),
        str(answer.generated_tokens),
        answer.reason,
        answer.model,
    )
    return [Content(escape_line(text)) for text in texts]
