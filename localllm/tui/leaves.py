"""Markdown as a flat list of leaves, read piece by piece as an answer grows.

A leaf is what one widget shows: a paragraph, a heading, an item of a list, some lines of code, a
table. `Reader` keeps only the text whose leaves may still change: the last block of the document,
of a list only its last item, of code only its last lines. What it costs to read on therefore
depends on that block, not on the length of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

CODE_LINES = 40
"""Lines of code that one widget holds."""
LONG = 12_000
"""Characters of one block; what is longer is shown as it is, in pieces of this length."""
_AT_ONCE = LONG // 3  # characters that are read together, so that many blocks are no long block

#: (text, styles) pieces of a line; styles are "bold", "italic", "strike", "code", "link", "dim".
Spans = tuple[tuple[str, tuple[str, ...]], ...]
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})[ \t]*([^\n]*)\n?")


@dataclass(frozen=True)
class Leaf:
    """kind: "text", "heading", "code", "table" or "rule". prefix: what stands before its first
    line (bars of quotes, the mark of an item); the other lines are indented as far, under the same
    bars. part: of code, which piece of it, within: it begins within a line; closed: its last one.
    level: of a heading."""

    kind: str
    spans: Spans = ()
    prefix: str = ""
    after: str = ""  # before the other lines
    level: int = 0
    language: str = ""
    code: str = ""
    part: int = 0
    within: bool = False
    closed: bool = True
    rows: tuple[tuple[Spans, ...], ...] = ()

    @property
    def plain(self) -> str:
        """The text without styles."""
        return self.code or "".join(text for text, _ in self.spans)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def leaves_of(text: str) -> list[Leaf]:
    """The leaves of a whole text."""
    reader = Reader()
    return [*reader.read(text), *reader.rest(ended=True)]


class Reader:
    """Reads a text that grows."""

    def __init__(self) -> None:
        self._tail = ""
        self._code: _Code | None = None  # the block of code that is open

    def read(self, text: str) -> list[Leaf]:
        """Takes in the next piece; returns the leaves that are finished now."""
        finished: list[Leaf] = []
        for at in range(0, len(text), _AT_ONCE):
            self._tail += text[at : at + _AT_ONCE]
            while (step := self._step()) is not None:
                finished += step
        return finished

    def rest(self, *, ended: bool = False) -> list[Leaf]:
        """The leaves of what may still change; none of it does if the text has ended."""
        if self._code is not None:
            lines = self._tail.splitlines(keepends=True)
            if lines and self._code.closes(lines[-1]):  # its new line is still to come
                lines.pop()
            return [self._code.leaf("".join(lines).removesuffix("\n"), closed=ended)]
        leaves = list(_leaves(_parser().parse(self._tail)))
        if leaves and leaves[-1].kind == "code" and not ended:
            leaves[-1] = replace(leaves[-1], closed=False)
        return leaves

    def _step(self) -> list[Leaf] | None:
        """Cuts off leaves that cannot change any more; None if there are none."""
        if self._code is not None:
            return self._step_in_code(self._code)
        step = self._step_over_blocks()
        if step is None and len(self._tail) > LONG:  # one block that has no end
            cut = self._tail.rfind("\n", LONG // 2, LONG) + 1 or LONG
            head, self._tail = self._tail[:cut], self._tail[cut:]
            step = [Leaf("text", ((head.strip("\n"), ()),))]
        return step

    def _step_over_blocks(self) -> list[Leaf] | None:
        lines = self._tail.splitlines(keepends=True)
        if len(lines) < 2:
            return None
        tokens = _parser().parse(self._tail)
        starts = [t.map[0] for t in tokens if t.level == 0 and t.nesting >= 0 and t.map]
        if not starts:
            return None
        start, last = starts[-1], tokens[-1]
        if start == 0 and last.type in ("bullet_list_close", "ordered_list_close"):
            items = [
                t.map[0] for t in tokens if t.type == "list_item_open" and t.level == 1 and t.map
            ]
            start = items[-1]
        if last.type == "fence" and self._opens_code("".join(lines[start:])):
            return list(_leaves(_parser().parse("".join(lines[:start]))))
        if start == 0:
            return None
        self._tail = "".join(lines[start:])
        return list(_leaves(_parser().parse("".join(lines[:start]))))

    def _opens_code(self, text: str) -> bool:
        match = _FENCE.match(text)
        if match is None or not match[0].endswith("\n"):
            return False
        self._code = _Code(len(match[1]), match[2], match[3].strip().split(" ")[0])
        self._tail = text[match.end() :]
        return True

    def _step_in_code(self, code: _Code) -> list[Leaf] | None:
        lines = self._tail.splitlines(keepends=True)
        for n, line in enumerate(lines):
            if line.endswith("\n") and code.closes(line):
                self._code = None
                self._tail = "".join(lines[n + 1 :])
                return [code.leaf("".join(lines[:n]).removesuffix("\n"), closed=True)]
        # A whole line and the last one stay: no piece is empty when the end of the code comes next.
        if len(lines) > CODE_LINES + 1:
            self._tail = "".join(lines[CODE_LINES:])
            return [code.piece("".join(lines[:CODE_LINES]).removesuffix("\n"))]
        if len(self._tail) > LONG:
            head, self._tail = self._tail[:LONG], self._tail[LONG:]
            return [code.piece(head, within_line=True)]
        return None


class _Code:
    """A block of code that is being read."""

    def __init__(self, indent: int, fence: str, language: str) -> None:
        self._indent, self._language, self._part, self._within = indent, language, 0, False
        self._end = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*\n?")

    def closes(self, line: str) -> bool:
        return self._end.fullmatch(line) is not None

    def leaf(self, code: str, *, closed: bool) -> Leaf:
        if self._indent:
            code = re.sub(rf"(?m)^ {{1,{self._indent}}}", "", code)
        return Leaf(
            "code", language=self._language, code=code, part=self._part, within=self._within,
            closed=closed,
        )  # fmt: skip

    def piece(self, code: str, *, within_line: bool = False) -> Leaf:
        leaf = self.leaf(code, closed=False)
        self._part += 1
        self._within = within_line
        return leaf


def _leaves(tokens: list[Token]) -> Iterator[Leaf]:
    """Flattens the blocks of a document."""
    walk = _Walk()
    for n, token in enumerate(tokens):
        kind = token.type
        if kind in _OPENS:
            walk.open(kind, token)
        elif kind in _CLOSES:
            walk.close()
        elif kind == "heading_open":
            yield walk.leaf("heading", _spans(tokens[n + 1]), level=int(token.tag[1:]))
        elif kind == "paragraph_open":
            yield walk.leaf("text", _spans(tokens[n + 1]))
        elif kind in ("fence", "code_block"):
            code = token.content.removesuffix("\n")
            language = token.info.strip().split(" ")[0] if token.info else ""
            yield walk.leaf("code", code=code, language=language)
        elif kind == "hr":
            yield walk.leaf("rule")
        elif kind == "table_open":
            yield walk.leaf("table", rows=_rows(tokens, n))


_OPENS = ("bullet_list_open", "ordered_list_open", "list_item_open", "blockquote_open")
_CLOSES = tuple(kind.replace("open", "close") for kind in _OPENS)


class _Walk:
    """The quotes and lists that a token lies in, as text before its lines."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._mark = ""  # of the item whose first leaf comes next

    def open(self, kind: str, token: Token) -> None:
        if kind == "list_item_open":
            mark = f"{token.info}{token.markup} " if token.info else "• "
            self._mark = mark
            self._before.append(" " * len(mark))
        else:
            self._before.append("▌ " if kind == "blockquote_open" else "")

    def close(self) -> None:
        self._before.pop()
        self._mark = ""

    def leaf(self, kind: str, spans: Spans = (), **more: object) -> Leaf:
        after = "".join(self._before)
        prefix = after[: len(after) - len(self._mark)] + self._mark if self._mark else after
        self._mark = ""
        return replace(Leaf(kind, spans, prefix, after), **more)  # type: ignore[arg-type]


def _rows(tokens: list[Token], start: int) -> tuple[tuple[Spans, ...], ...]:
    rows: list[list[Spans]] = []
    for token in tokens[start:]:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_spans(token))
    return tuple(tuple(row) for row in rows)


_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "link"}


def _spans(token: Token) -> Spans:
    """The pieces of a line. Where a link leads is said after its text, if that is not the same."""
    out: list[tuple[str, tuple[str, ...]]] = []
    styles: list[str] = []
    targets: list[tuple[str, int]] = []
    for child in token.children or ():
        name, _, side = child.type.rpartition("_")
        if child.type == "text":
            out.append((child.content, tuple(styles)))
        elif child.type == "softbreak":
            out.append((" ", tuple(styles)))
        elif child.type == "hardbreak":
            out.append(("\n", tuple(styles)))
        elif child.type == "code_inline":
            out.append((child.content, (*styles, "code")))
        elif child.type == "image":
            source = str(child.attrs.get("src", ""))
            out.append((f"[image: {child.content or source}]", (*styles, "dim")))
        elif side == "open" and name in _STYLES:
            styles.append(_STYLES[name])
            if name == "link":
                targets.append((str(child.attrs.get("href", "")), len(out)))
        elif side == "close" and name in _STYLES:
            styles.pop()
            if name == "link":
                target, begin = targets.pop()
                if "".join(text for text, _ in out[begin:]) != target and target:
                    out.append((f" ({target})", ("dim",)))
    return tuple((text, style) for text, style in out if text)
