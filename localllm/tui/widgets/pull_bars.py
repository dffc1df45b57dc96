"""The pulls that run, and those that ended and were not yet acknowledged: a bar for each."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from localllm.plain_text import cells_of, duration_text, escape_line, fit, size_text
from localllm.tui.pulls import CANCELLED, DONE, FAILED, FilePart, Pull
from localllm.tui.widgets.live_bar import bar

_WIDE, _NARROW = 20, 10
_MOST_FILES = 5
"""Files of one model that have a line each."""


class PullBars(VerticalScroll, can_focus=False):
    """Give it all pulls with `show`. What the user wants comes as `Wanted`."""

    DEFAULT_CSS = """
    PullBars { height: auto; max-height: 8; background: $surface; }
    PullBars.-empty { display: none; }
    PullRow { height: auto; padding: 0 1; }
    PullRow Horizontal { height: 1; }
    PullRow Static { width: 1fr; height: auto; }
    PullRow .below { height: auto; color: $text-muted; }
    PullRow .below.-none { display: none; }
    PullRow Button { min-width: 8; margin-left: 1; }
    """

    class Wanted(Message):
        """action: "stop", "again" or "dismiss"."""

        def __init__(self, name: str, action: str) -> None:
            super().__init__()
            self.name, self.action = name, action

    def on_mount(self) -> None:
        self.add_class("-empty")

    def show(self, pulls: Sequence[Pull]) -> None:
        """Draws the pulls, in their order."""
        rows = {row.pull.name: row for row in self.query(PullRow)}
        for pull in pulls:
            row = rows.pop(pull.name, None)
            if row is None:
                self.mount(PullRow(pull))
            else:
                row.show(pull)
        for row in rows.values():
            row.remove()
        self.set_class(not pulls, "-empty")


class PullRow(Vertical):
    """One pull: all of it, beneath it each of its files, or why it failed."""

    def __init__(self, pull: Pull) -> None:
        super().__init__()
        self.pull = pull

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("", classes="whole", markup=False)
            yield Button("Stop", compact=True, classes="first")
            yield Button("Dismiss", compact=True, classes="second")
        yield Static("", classes="below", markup=False)

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def show(self, pull: Pull) -> None:
        self.pull = pull
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        pull = self.pull
        whole, second = self.query_one(".whole", Static), self.query_one(".second", Button)
        first = self.query_one(".first", Button)
        first.label = Content("Again" if pull.state in (FAILED, CANCELLED) else "Stop")
        first.display = pull.state != DONE
        second.display = pull.is_over
        whole.update(Content(whole_text(pull, whole.size.width or 40)))
        below = self.query_one(".below", Static)
        text = below_text(pull, self.size.width - 2 or 40)
        below.set_class(not text, "-none")
        below.update(Content(text))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        action = "dismiss"
        if event.button.has_class("first"):
            action = "again" if self.pull.is_over else "stop"
        self.post_message(PullBars.Wanted(self.pull.name, action))


def whole_text(pull: Pull, width: int) -> str:
    """The line of a pull, in one of its forms."""
    name = escape_line(pull.name)
    if pull.is_over:
        return f"{name}: {'is here' if pull.state == DONE else pull.stage}"
    stage, share = escape_line(pull.stage), pull.share
    bars = [bar(share, cells) for cells in (_WIDE, _NARROW)] if share is not None else []
    percent = "" if share is None else f"{share:.0%}"
    pace = f"{size_text(int(pull.bytes_per_s))}/s" if pull.bytes_per_s else ""
    left = "" if pull.eta_s is None else f"{duration_text(pull.eta_s)} left"
    forms = [[name, stage, drawn, pull.figures] for drawn in (*bars, "")]
    forms += [[name, *drawn, percent or stage, pace, left] for drawn in (bars[-1:], [])]
    forms += [[name, percent or stage, left], [name, percent or stage]]
    text = ""
    for parts in forms:
        text = " ".join(part for part in parts if part)
        if cells_of(text) <= width:
            break
    return fit(text, width)


def below_text(pull: Pull, width: int) -> str:
    """A line for each file of several; or what there is to say of an end."""
    if pull.state == DONE:
        return ""
    if pull.is_over:
        return escape_line(f"{pull.error}. {pull.hint}" if pull.error else pull.hint)
    shown, head = pull.files, []
    if len(shown) > _MOST_FILES:
        n_here = sum(part.is_whole for part in shown)
        begun = next((n for n, part in enumerate(shown) if not part.is_whole), len(shown) - 1)
        head = [f"{n_here} of {len(shown)} files are here"]
        shown = shown[begun : begun + _MOST_FILES - 1]
    return "\n".join(fit(line, width) for line in [*head, *map(_file_line, shown)])


def _file_line(part: FilePart) -> str:
    """A bar, or as many bytes as have come."""
    share, name = part.share, escape_line(part.name)
    drawn = size_text(part.n_bytes) if share is None else f"{bar(share, _NARROW)} {share:>4.0%}"
    return f"{drawn:17} {name}"
