"""One line of live figures, which shortens by steps on a narrow screen."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import events
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static

from localllm.plain_text import cells_of, count_text, escape_line, fit, size_text
from localllm.tui.live import Snapshot

MOST_DRAWS_PER_S = 4.0
_BETWEEN = "  "
_BAR_CELLS = 10


class LiveBar(Static):
    """Give it snapshots with `show`, as many as there are: it draws the latest, at most four times
    a second. A click posts `Pressed`."""

    DEFAULT_CSS = """
    LiveBar { height: 1; width: 1fr; padding: 0 1; background: $panel; color: $text; }
    """

    class Pressed(Message):
        """The user wants to see more of the figures."""

    def __init__(
        self, *, id: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("", id=id, markup=False)
        self.n_draws = 0
        self._clock = clock
        self._latest = Snapshot()
        self._drawn_at = float("-inf")
        self._timer: Timer | None = None

    def show(self, moment: Snapshot) -> None:
        """Draws at once if the last time is long enough ago, else as soon as it is."""
        self._latest = moment
        if self._timer is not None:
            return
        wait = self._drawn_at + 1 / MOST_DRAWS_PER_S - self._clock()
        if wait <= 0 or not self.is_mounted:
            self._draw()
        else:
            self._timer = self.set_timer(wait, self._draw)

    @property
    def text(self) -> str:
        """What is shown."""
        return line(self._latest, max(10, self.size.width - 2))

    def _draw(self) -> None:
        self._timer = None
        self._drawn_at = self._clock()
        self.n_draws += 1
        self.update(Content(self.text), layout=False)
        self.tooltip = Content("\n".join(sentences(self._latest)))

    def on_resize(self, event: events.Resize) -> None:
        self.update(Content(self.text), layout=False)

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Pressed())


def line(moment: Snapshot, width: int) -> str:
    """The longest of the forms of a moment that has room in so many cells. What is of least use
    goes first; a word that fell away leaves its figure."""
    for step in range(len(_STEPS) + 1):
        text = _BETWEEN.join(part for part in _parts(moment, frozenset(_STEPS[:step])) if part)
        if cells_of(text) <= width:
            return text
    return fit(text, width)


#: What is shortened or left out, one after the other.
_STEPS = (
    "memory share",
    "kv size",
    "first token word",
    "context bar",
    "cached word",
    "process word",
    "kv",
    "process",
    "pull words",
    "first token",
    "context size",
    "cached",
    "load",
    "pulls",
    "context",
)


def _parts(s: Snapshot, gone: frozenset[str]) -> list[str]:
    parts = [_speed(s)]
    if s.first_token_s is not None and "first token" not in gone:
        word = "1st" if "first token word" in gone else "first token"
        parts.append(f"{word} {seconds_text(s.first_token_s)}")
    if "context" not in gone:
        parts.append(_context(s, gone))
    if s.cached_tokens is not None and "cached" not in gone:
        word = "kept" if "cached word" in gone else "cached"
        parts.append(f"{word} {count_text(s.cached_tokens)}")
    if s.kv_bytes and "kv" not in gone:
        of = "" if "kv size" in gone else f" of {size_text(s.kv_bytes)}"
        parts.append(f"KV {size_text(s.kv_used_bytes)}{of}")
    if s.process_bytes is not None and "process" not in gone:
        word = "" if "process word" in gone else "memory "
        parts.append(f"{word}{size_text(s.process_bytes)}")
    if s.machine_load is not None and "load" not in gone:
        share = "" if s.memory_used is None or "memory share" in gone else (
            f", RAM {s.memory_used:.0%}"
        )  # fmt: skip
        parts.append(f"CPU {s.machine_load:.0%}{share}")
    if s.pulls and "pulls" not in gone:
        pulls = escape_line(s.pulls)
        parts.append(pulls.split(" ", 1)[0] + " ..." if "pull words" in gone else pulls)
    return parts


def _speed(s: Snapshot) -> str:
    done, total = s.prompt_done
    if s.answering and s.tokens_per_s is None:
        return f"reading {done}/{total}" if total else "reading"
    return "- tok/s" if s.tokens_per_s is None else f"{speed_text(s.tokens_per_s)} tok/s"


def _context(s: Snapshot, gone: frozenset[str]) -> str:
    share = s.context_share
    if share is None:
        return f"context {count_text(s.context_used)}" if s.context_used else ""
    text = f"{count_text(s.context_used)}"
    text += "" if "context size" in gone else f"/{count_text(s.context_size)}"
    if "context bar" in gone:
        return f"ctx {text} {share:.0%}"
    return f"context {bar(share, _BAR_CELLS)} {text} {share:.0%}"


def sentences(s: Snapshot) -> list[str]:
    """The same with all words, a line each."""
    lines = [f"Speed: {_speed(s)}"]
    if s.first_token_s is not None:
        lines.append(f"Time to the first token: {seconds_text(s.first_token_s)}")
    if s.context_size:
        lines.append(f"Context: {s.context_used} of {s.context_size} tokens")
    if s.cached_tokens is not None:
        lines.append(f"Tokens of the last prompt that were kept: {s.cached_tokens}")
    if s.kv_bytes:
        lines.append(f"KV cache: {size_text(s.kv_used_bytes)} of {size_text(s.kv_bytes)}")
    if s.process_bytes is not None:
        lines.append(f"Memory of this program: {size_text(s.process_bytes)}")
    if s.machine_load is not None:
        lines.append(f"CPUs of this machine: {s.machine_load:.0%} busy")
    if s.memory_used is not None:
        lines.append(f"Memory of this machine: {s.memory_used:.0%} in use")
    if s.pulls:
        lines.append(escape_line(s.pulls))
    return lines


def bar(share: float, cells: int) -> str:
    """`[####------]`: readable without colours and in every font."""
    filled = round(max(0.0, min(1.0, share)) * cells)
    return f"[{'#' * filled}{'-' * (cells - filled)}]"


def speed_text(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}" if tokens_per_s < 100 else f"{tokens_per_s:.0f}"


def seconds_text(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
