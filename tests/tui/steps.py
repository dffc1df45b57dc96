"""Steps through the chat in a table: what is pressed or clicked, and what is seen then."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.content import Content
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Button, Checkbox, DataTable, OptionList, RadioButton, Select, Static
from textual.widgets._collapsible import CollapsibleTitle
from textual.widgets._select import SelectOverlay
from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession, Thought
from tui.test_models_screen import FakeLibrary

from localllm.plain_text import cells_of
from localllm.session import Chunk
from localllm.tui.pulls import Pull, Pulls, Tell
from localllm.tui.widgets.composer import Chip
from localllm.tui.widgets.live_bar import LiveBar
from localllm.tui.widgets.sheet import Part, Sheet
from localllm.tui.widgets.sidebar import ActionLabel

LINES = "\n\n".join(f"line {n}" for n in range(40))
CODE = "\n\n```python\nx = 1\n```\n"


@dataclass(frozen=True)
class K:
    """A key of a class, and what is seen after it; `before` is noted first, and given to it."""

    owner: str
    key: str
    seen: Callable[[Driven, Any], object]
    before: Callable[[Driven], Any] = lambda d: None


@dataclass(frozen=True)
class C:
    """What is clicked, as `clickables` calls it, how far from its corner, and what is seen."""

    name: str
    seen: Callable[[Driven, Any], object]
    before: Callable[[Driven], Any] = lambda d: None
    at: tuple[int, int] | None = None


Row = K | C | Callable[[Driven], Awaitable[None]]
_CLICKED = (
    Button, Checkbox, CollapsibleTitle, DataTable, OptionList, RadioButton, Select,
    ActionLabel, Chip, LiveBar,
)  # fmt: skip


def clickables(screen: Screen[Any]) -> dict[str, tuple[Widget, tuple[int, int] | None]]:
    """All that can be clicked and is in sight but the keys of the footer, by our class that it is
    part of and what it is there; the uppermost of some that are alike."""
    found: dict[str, tuple[Widget, tuple[int, int] | None]] = {}
    visible = screen._compositor.visible_widgets.items()
    for widget, (region, clip) in sorted(visible, key=lambda each: each[1][0].y):
        if not region.overlaps(clip) or isinstance(widget, SelectOverlay):
            continue
        if isinstance(widget, _CLICKED):
            owners = (type(each) for each in widget.ancestors_with_self)
            owner = next(each for each in owners if each.__module__.startswith("localllm"))
            what = widget.id or type(widget).__name__
            if isinstance(widget, ActionLabel):
                what = str(widget.content)
            elif isinstance(widget, Button) and not widget.id:
                what = str(widget.label)
            found.setdefault(f"{owner.__name__} {what}", (widget, None))
        for y, line in enumerate(_lines(widget)):
            for span in line.spans:
                action = span.style.meta.get("@click") if isinstance(span.style, Style) else None
                if action:
                    at = widget.gutter.left + cells_of(line.plain[: span.start]), y
                    found.setdefault(f"{type(widget).__name__} {action}", (widget, at))
    return found


def _lines(widget: Widget) -> list[Content]:
    """The lines of a widget of which some words may be clicked."""
    if isinstance(widget, Sheet):
        first = widget.items[0] if widget.items else None
        visual = first.visual if isinstance(first, Part) else None
    else:
        visual = widget.content if isinstance(widget, Static) else None
    return [visual] if isinstance(visual, Content) else []


def on(screen: type[Any]) -> Callable[[Driven, Any], object]:
    return lambda d, _: isinstance(d.app.screen, screen)


def in_chat(d: Driven, _: Any = None) -> object:
    return d.app.screen is d.chat


def typing(d: Driven, _: Any = None) -> object:
    return d.app.focused is d.chat.composer.editor


def focused(kind: type[Any]) -> Callable[[Driven, Any], object]:
    return lambda d, _: isinstance(d.app.focused, kind)


def focus(d: Driven) -> Any:
    return d.app.focused


def other(d: Driven, before: Any) -> object:
    """The focus is on another widget now."""
    return d.app.focused is not None and d.app.focused is not before


def shows(text: str) -> Callable[[Driven, Any], object]:
    return lambda d, _: text in d.text


def press(*keys: str) -> Callable[[Driven], Awaitable[None]]:
    return lambda d: d.press(*keys)


class Endless:
    """A pull that goes on until it is stopped."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __call__(self, pull: Pull, tell: Tell) -> str:
        while not self.ended.wait(0.005):
            tell(pull)
        return pull.name


def take_steps(folder: Path, rows: Sequence[Row], text: str = LINES) -> set[str]:
    """Takes them in a new chat, whose answers have a text, are cut and hold code. Returns all that
    could have been clicked."""
    could: set[str] = set()
    cut = Chunk("", finish_reason="length")
    session = FakeSession([[Thought("thought of it"), text, CODE, cut]])
    opener = FakeOpener({"fake:135m": session, "other:1b": FakeSession(), "old:1b": FakeSession()})
    bring = Endless()
    running = Pulls(bring)

    async def body(d: Driven) -> None:
        for row in rows:
            could.update(clickables(d.app.screen))
            if not isinstance(row, (K, C)):
                await row(d)
                continue
            before = row.before(d)
            if isinstance(row, K):
                await d.press(row.key)
            else:
                await d.until(lambda row=row: row.name in clickables(d.app.screen))  # type: ignore[misc]
                # A button that was pressed takes no click for a moment.
                await d.until(lambda: not d.app.screen.query("Button.-active"))
                widget, word = clickables(d.app.screen)[row.name]
                at = row.at or word
                await (d.pilot.click(widget, offset=at) if at else d.pilot.click(widget))
            try:
                await d.until(lambda row=row, before=before: row.seen(d, before))  # type: ignore[misc]
            except AssertionError as e:
                raise AssertionError(f"{row}: {e}") from e

    try:
        drive(body, folder, opener=opener, library=FakeLibrary(), pulls=running)
    finally:
        bring.ended.set()
        running.close()
    return could
