"""An answer as it is written: finished leaves are shown once, only the last ones change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widget import Widget

from localllm.plain_text import escape_line
from localllm.tui.blocks import highlighted, visual_of
from localllm.tui.foreign_text import exact, hide
from localllm.tui.keys import bindings
from localllm.tui.leaves import Leaf, Reader
from localllm.tui.widgets.sheet import Part, Sheet


class Passage(Sheet):
    """Leaves that are no code, between two blocks of code."""

    FIRST: ClassVar[int] = 0  # the item that shows the first leaf


_Holder = TypeVar("_Holder", bound=Widget)


@dataclass
class _Open:
    """A leaf that may still change: where it is shown, and whether the leaf before it is part of a
    list or a quote (None: there is none)."""

    leaf: Leaf
    holder: Passage | CodeBlock
    at: int  # the item of the holder
    before: bool | None


class Answer(Sheet):
    """Markdown that grows by `add`. n_mounted and n_updates count leaves that were shown, and shown
    again."""

    def __init__(self, text: str = "", *, ended: bool = False, classes: str = "") -> None:
        super().__init__(classes=f"answer {classes}")
        self.source = text  # as it came: what is copied
        self.n_mounted = self.n_updates = 0
        self._reader = Reader()
        self._open: list[_Open] = []
        self._within: bool | None = None  # of the last leaf: see `_Open.before`
        self._mounting: list[Widget] = []
        self._removing: list[Widget] = []
        self._begin, self._ended = text, ended
        self._begun = False
        self._held = ""  # came, and is not read yet

    async def on_mount(self) -> None:
        self._begun = True
        await self._take(self._begin, ended=self._ended)

    async def add(self, text: str) -> None:
        """Shows more of the answer."""
        self.source += text
        if self._begun:
            await self._take(text)
        else:
            self._begin += text

    async def end(self) -> None:
        """No more comes."""
        self._ended = True
        if self._begun:
            await self._take("", ended=True)

    async def go_on(self) -> None:
        """What had ended grows again: all of it is read once more, as its last block may change."""
        self._ended = False
        if self._begun:
            self._removing = list(self.children)
            self.cut(0)
            self._reader, self._open, self._within, self._held = Reader(), [], None, ""
            await self._take(self.source)

    async def _take(self, text: str, *, ended: bool = False) -> None:
        """All is noted before anything is awaited: two tasks may be here."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") and not ended else ""  # of a line's end, perhaps
        text = text.removesuffix(self._held).replace("\r\n", "\n")
        finished = self._reader.read(hide(text))
        leaves = [*finished, *self._reader.rest(ended=ended)]
        n_kept = 0
        for shown, leaf in zip(self._open, leaves, strict=False):
            if not self._changed(shown, leaf):  # another kind: it and all below are drawn anew
                break
            n_kept += 1
        self._drop(n_kept)
        for leaf in leaves[n_kept:]:
            self._append(leaf)
        del self._open[: len(leaves) if ended else len(finished)]
        mounting, self._mounting = self._mounting, []
        removing, self._removing = self._removing, []
        if mounting:
            await self.mount_all(mounting)
        if removing:
            await self.remove_children(removing)

    def _changed(self, shown: _Open, leaf: Leaf) -> bool:
        """Whether a leaf is shown now where another one was, or the same."""
        before = shown.leaf
        if before != leaf:
            if isinstance(shown.holder, CodeBlock):
                if leaf.kind != "code" or leaf.part != before.part:
                    return False
                shown.holder.show(leaf)
            elif leaf.kind == "code":
                return False
            else:
                shown.holder.put(shown.at, _part(leaf, shown.before))
            self.n_updates += 1
            shown.leaf = leaf
        self._within = bool(leaf.prefix)
        return True

    def _drop(self, n_kept: int) -> None:
        """Takes away the open leaves but the first so many."""
        dropped = self._open[n_kept:]
        del self._open[n_kept:]
        if dropped:
            self._within = dropped[0].before
        empty = set()
        for each in reversed(dropped):
            each.holder.cut(each.at)
            if each.at == each.holder.FIRST:
                empty.add(each.holder)
        if empty:
            begin = min(self.items.index(each) for each in empty)
            if begin and isinstance(self.items[begin - 1], Part):
                begin -= 1
            self.cut(begin)
            self._removing += empty

    def _append(self, leaf: Leaf) -> None:
        """Shows a leaf below all others."""
        before, self._within = self._within, bool(leaf.prefix)
        last = self.items[-1] if self.items else None
        self.n_mounted += 1
        if leaf.kind == "code":
            if isinstance(last, CodeBlock) and leaf.part:
                last.show(leaf)
                holder: Passage | CodeBlock = last
            else:
                if before is not None and not (leaf.prefix and before):
                    self.put(len(self.items), Part(Content("")))
                holder = self._hold(CodeBlock(leaf))
        else:
            holder = last if isinstance(last, Passage) else self._hold(Passage())
            holder.put(len(holder.items), _part(leaf, before))
        self._open.append(_Open(leaf, holder, len(holder.items) - 1, before))

    def _hold(self, widget: _Holder) -> _Holder:
        self._mounting.append(widget)
        self.put(len(self.items), widget)
        return widget


def _part(leaf: Leaf, before: bool | None) -> Part:
    apart = before is not None and not (leaf.prefix and before)
    return Part(visual_of(leaf), apart=apart)


class CodeBlock(Sheet, can_focus=True):
    """A block of code, in pieces of some lines, with what can be done with it."""

    BINDINGS = bindings("code")
    COMPONENT_CLASSES: ClassVar[set[str]] = {"code--head"}
    FIRST: ClassVar[int] = 1

    class Wanted(Message):
        """Something is to be done with the code. what: "copy" or "save"."""

        def __init__(self, block: CodeBlock, what: str) -> None:
            super().__init__()
            self.block, self.what = block, what

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(classes="code")
        self._pieces: list[Leaf] = []
        self.language = leaf.language
        self._show_head()
        self.show(leaf)

    @property
    def code(self) -> str:
        """The code as it came, with a new line at the end of each line."""
        parts = [
            ("\n" if leaf.part and not leaf.within else "", leaf.code) for leaf in self._pieces
        ]
        return exact("".join(newline + code for newline, code in parts) + "\n")

    @property
    def closed(self) -> bool:
        """Whether the code has ended."""
        return self._pieces[-1].closed

    def show(self, leaf: Leaf) -> None:
        """Shows a piece, in the place of what it was before or below all."""
        self._pieces[leaf.part : leaf.part + 1] = [leaf]
        if leaf.language != self.language:  # its name was still to come
            self.language = leaf.language
            self._show_head()
        if self.closed and len(self._pieces) > 1:
            self._colour_the_whole()
        else:
            self.put(self.FIRST + leaf.part, Part(highlighted(leaf.code, self.language)))

    def cut(self, at: int) -> None:
        del self._pieces[max(0, at - self.FIRST) :]
        super().cut(at)

    def _colour_the_whole(self) -> None:
        """Once all pieces are here, their colours are those of the whole."""
        whole = highlighted("\n".join(leaf.code for leaf in self._pieces), self.language)
        lines = whole.split("\n", allow_blank=True)
        for part, leaf in enumerate(self._pieces):
            n = leaf.code.count("\n") + 1
            self.put(self.FIRST + part, Part(Content("\n").join(lines[:n])))
            lines = lines[n:]

    def _show_head(self) -> None:
        """The language, and what the mouse can do."""
        line = Content.assemble((escape_line(exact(self.language[:40])) or "code", "bold"))
        for what in ("copy", "save"):
            line = line.append("  ").append(link(what, what))
        self.put(0, Part(line, look="code--head", n_most=1))

    def action_wanted(self, what: str) -> None:
        """An action of the table of keys, or what was clicked."""
        self.post_message(self.Wanted(self, what))


def link(text: str, what: str) -> Content:
    """A word of ours that can be clicked: it runs `action_wanted` of its widget."""
    style = Style(dim=True) + Style.from_meta({"@click": f"wanted('{what}')"})
    return Content.styled(text, style)
