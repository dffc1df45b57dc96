"""An answer as it is written: finished leaves are mounted once, only the last ones change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.visual import Visual
from textual.widget import Widget
from textual.widgets import Static

from localllm.plain_text import escape_line
from localllm.tui.blocks import Stack, highlighted, visual_of
from localllm.tui.foreign_text import exact, hide
from localllm.tui.keys import bindings
from localllm.tui.leaves import Leaf, Reader

if TYPE_CHECKING:
    from textual.css.styles import RulesMap

_JOINED = 16
"""Leaves that one widget shows once they are finished: what each widget costs, whenever a layout is
made, is more than what its text does."""


class Answer(Vertical):
    """Markdown that grows by `add`. n_mounted and n_updates count what was done to widgets."""

    def __init__(self, text: str = "", *, ended: bool = False, classes: str = "") -> None:
        super().__init__(classes=f"answer {classes}")
        self.source = text  # as it came: what is copied
        self.n_mounted = self.n_updates = 0
        self._reader = Reader()
        self._open: list[tuple[Leaf, Widget]] = []  # what may still change
        self._code: CodeBlock | None = None  # the last one
        self._within: bool | None = None  # the last leaf is part of a list or a quote
        self._run: list[LeafView] = []  # finished ones that follow each other, to be joined
        self._begin, self._ended = text, ended
        self._held = ""  # came, and is not read yet

    async def on_mount(self) -> None:
        await self._take(self._begin, ended=self._ended)

    async def add(self, text: str) -> None:
        """Shows more of the answer."""
        self.source += text
        await self._take(text)

    async def end(self) -> None:
        """No more comes."""
        await self._take("", ended=True)
        await self._join([self._run])
        self._run = []

    async def go_on(self) -> None:
        """What had ended grows again: all of it is read once more, as its last block may change."""
        await self.remove_children()
        self._reader, self._open, self._code, self._within = Reader(), [], None, None
        self._held, self._run = "", []
        await self._take(self.source)

    async def _take(self, text: str, *, ended: bool = False) -> None:
        text = self._held + text
        self._held = "\r" if text.endswith("\r") and not ended else ""  # of a line's end, perhaps
        text = text.removesuffix(self._held).replace("\r\n", "\n")
        finished = self._reader.read(hide(text))
        leaves = [*finished, *self._reader.rest(ended=ended)]
        shown: list[tuple[Leaf, Widget]] = []
        mounting: list[Widget] = []
        surplus = self._open[len(leaves) :]
        for n, leaf in enumerate(leaves):
            old = self._open[n] if n < len(self._open) else None
            if old is not None and self._changed(old, leaf):
                shown.append((leaf, old[1]))
                continue
            if old is not None:  # another kind: it and all below are drawn anew
                surplus += self._open[n:]
                self._open = self._open[:n]
            if leaf.kind == "code" and leaf.part and self._code is not None:
                await self._mount(mounting, ended)  # the code's widget has to be there first
                mounting = []
                await self._code.show(leaf)
                self.n_mounted += 1
                shown.append((leaf, self._code))
            else:
                widget = self._made(leaf)
                mounting.append(widget)
                shown.append((leaf, widget))
        for _, widget in surplus:
            if not any(widget is kept for _, kept in shown):
                await widget.remove()
        await self._mount(mounting, ended)
        self._open = shown[len(finished) :]
        await self._finish([widget for _, widget in (shown if ended else shown[: len(finished)])])

    async def _finish(self, widgets: Iterable[Widget]) -> None:
        """Joins those of the leaves that are finished which will get no other neighbour."""
        runs = []
        for widget in widgets:
            if isinstance(widget, LeafView) and widget.parent is self:
                self._run.append(widget)
            if not isinstance(widget, LeafView) or len(self._run) == _JOINED:
                runs.append(self._run)
                self._run = []
        await self._join(runs)

    async def _join(self, runs: Iterable[list[LeafView]]) -> None:
        runs = [run for run in runs if len(run) > 1]
        if not runs:
            return
        with self.app.batch_update():
            for first, *others in runs:
                first.join(others)
            await self.remove_children([each for run in runs for each in run[1:]])
        for first, *_ in runs:
            # Textual (8.2) keeps the box of a widget that asks for a layout while an earlier wish
            # of its own waits; in an answer of the same height as before it stays a line high.
            self.call_after_refresh(first.refresh, layout=True)

    async def _mount(self, widgets: list[Widget], ended: bool) -> None:
        if ended:
            widgets = _joined(widgets)
        if widgets:
            await self.mount_all(widgets)
            self.n_mounted += len(widgets)

    def _changed(self, old: tuple[Leaf, Widget], leaf: Leaf) -> bool:
        """Whether a widget shows a leaf now, as it did or changed."""
        before, widget = old
        if before == leaf:
            return True
        if isinstance(widget, CodeBlock):
            if leaf.kind != "code" or leaf.part != before.part:
                return False
            widget.change(leaf)
        elif isinstance(widget, LeafView) and leaf.kind != "code":
            widget.change(leaf)
        else:
            return False
        self.n_updates += 1
        return True

    def _made(self, leaf: Leaf) -> Widget:
        if leaf.kind == "code":
            self._code = CodeBlock(leaf)
            widget: Widget = self._code
        else:
            widget = LeafView(leaf)
        within = bool(leaf.prefix)  # of a list or a quote
        if self._within is not None and not (within and self._within):
            widget.add_class("apart")
        self._within = within
        return widget


def _joined(widgets: Iterable[Widget]) -> list[Widget]:
    """Widgets that are not mounted yet, fewer that show the same."""
    runs: list[list[Widget]] = []
    for widget in widgets:
        last = runs[-1] if runs else None
        if last and len(last) < _JOINED and all(isinstance(w, LeafView) for w in (last[0], widget)):
            last.append(widget)
        else:
            runs.append([widget])
    for first, *others in runs:
        if others:
            cast(LeafView, first).join(cast("list[LeafView]", others))
    return [run[0] for run in runs]


def _redraw(widget: Static, visual: Visual) -> None:
    """Shows a visual; the layout is computed only if its height is another one."""
    width = widget.content_size.width
    rules = cast("RulesMap", widget.styles)  # which is what Textual itself gives
    same = bool(width) and visual.get_height(rules, width) == widget.content_size.height
    widget.update(visual, layout=not same)


class LeafView(Static):
    """A leaf that is no code."""

    def __init__(self, leaf: Leaf) -> None:
        self._parts = [(False, visual_of(leaf))]
        super().__init__(self._parts[0][1], classes=f"leaf {leaf.kind}")

    def change(self, leaf: Leaf) -> None:
        """Shows another leaf."""
        self._parts = [(False, visual_of(leaf))]
        _redraw(self, self._parts[0][1])

    def join(self, others: Sequence[LeafView]) -> None:
        """Shows what others show, too, below it."""
        for other in others:
            apart = other.has_class("apart")
            self._parts += [((n == 0 and apart) or a, v) for n, (a, v) in enumerate(other._parts)]
        self.update(Stack(self._parts))


class CodeBlock(Vertical, can_focus=True):
    """A block of code, in pieces of some lines, with what can be done with it."""

    BINDINGS = bindings("code")

    class Wanted(Message):
        """Something is to be done with the code. what: "copy" or "save"."""

        def __init__(self, block: CodeBlock, what: str) -> None:
            super().__init__()
            self.block, self.what = block, what

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(classes="code")
        self._pieces: dict[int, Leaf] = {leaf.part: leaf}
        self._views: dict[int, Static] = {}
        self.language = leaf.language
        self._head = CodeHead()

    @property
    def code(self) -> str:
        """The code as it came, with a new line at the end of each line."""
        parts = [
            ("\n" if leaf.part and not leaf.within else "", leaf.code)
            for leaf in self._pieces.values()
        ]
        return exact("".join(newline + code for newline, code in parts) + "\n")

    @property
    def closed(self) -> bool:
        """Whether the code has ended."""
        return next(reversed(self._pieces.values())).closed

    def compose(self) -> ComposeResult:
        self._head.show(self.language)
        yield self._head
        for part, leaf in self._pieces.items():
            yield self._view(part, leaf)

    async def show(self, leaf: Leaf) -> None:
        """Shows a further piece."""
        self._pieces[leaf.part] = leaf
        await self.mount(self._view(leaf.part, leaf))
        self._close()

    def change(self, leaf: Leaf) -> None:
        """Shows a piece as it is now."""
        self._pieces[leaf.part] = leaf
        if leaf.language != self.language:  # its name was still to come
            self.language = leaf.language
            self._head.show(self.language)
        if view := self._views.get(leaf.part):
            _redraw(view, highlighted(leaf.code, self.language))
        self._close()

    def _view(self, part: int, leaf: Leaf) -> Static:
        view = self._views[part] = Static(
            highlighted(leaf.code, self.language), classes="code-piece"
        )
        return view

    def _close(self) -> None:
        """Once all pieces are here, their colours are those of the whole."""
        if self.closed and len(self._pieces) > 1:
            whole = highlighted(
                "\n".join(leaf.code for leaf in self._pieces.values()), self.language
            )
            lines = whole.split("\n", allow_blank=True)
            for part, leaf in self._pieces.items():
                n = leaf.code.count("\n") + 1
                self._views[part].update(Content("\n").join(lines[:n]), layout=False)
                lines = lines[n:]

    def action_wanted(self, what: str) -> None:
        """An action of the table of keys."""
        self.post_message(self.Wanted(self, what))


class CodeHead(Static):
    """The line above code: its language, and what the mouse can do."""

    def __init__(self) -> None:
        super().__init__(classes="code-head")

    def show(self, language: str) -> None:
        """Names the language."""
        line = Content.assemble((escape_line(exact(language[:40])) or "code", "bold"))
        for what in ("copy", "save"):
            line = line.append("  ").append(link(what, what))
        self.update(line)

    def action_wanted(self, what: str) -> None:
        """What was clicked."""
        if isinstance(self.parent, CodeBlock):
            self.parent.action_wanted(what)


def link(text: str, what: str) -> Content:
    """A word of ours that can be clicked: it runs `action_wanted` of its widget."""
    style = Style(dim=True) + Style.from_meta({"@click": f"wanted('{what}')"})
    return Content.styled(text, style)
