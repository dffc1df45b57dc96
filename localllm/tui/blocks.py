"""What the leaves of an answer look like: visuals that Textual draws at any width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

from localllm.plain_text import cells_of
from localllm.tui.foreign_text import shown

if TYPE_CHECKING:
    from textual.css.styles import RulesMap

    from localllm.tui.leaves import Leaf, Spans

_STYLES = {
    "bold": "bold",
    "italic": "italic",
    "strike": "strike",
    "code": "bold $text-accent",
    "link": "underline",
    "dim": "dim",
}


def content_of(spans: Spans) -> Content:
    """A line of text with its styles."""
    text, marks = "", []
    for piece, styles in spans:
        begin, text = len(text), text + shown(piece)
        marks += [Span(begin, len(text), _STYLES[name]) for name in styles]
    return Content(text, spans=marks)


class Hanging(Visual):
    """Text whose first line begins with a prefix, and whose others are indented as far."""

    def __init__(self, body: Content, prefix: str, after: str) -> None:
        self._body, self._prefix, self._after = body, prefix, after
        self._indent = cells_of(prefix)

    @property
    def text(self) -> str:
        """What can be copied: no prefix."""
        return self._body.plain

    def _width(self, width: int) -> int:
        return max(8, width - self._indent)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return self._indent + self._body.get_optimal_width(rules, container_width)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self._body.get_height(rules, self._width(width))

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        body = self._body.render_strips(self._width(width), height, style, options)
        first, other = (
            Strip(Content(text).stylize("dim").render_segments(style))
            for text in (self._prefix, self._after.ljust(self._indent))
        )
        return [Strip.join([other if n else first, strip]) for n, strip in enumerate(body)]


class Table(Visual):
    """Rows under a head. Columns that do not fit are narrowed, and their text is wrapped."""

    _GAP = " │ "

    def __init__(self, rows: tuple[tuple[Spans, ...], ...], prefix: str) -> None:
        n = max(map(len, rows))
        self._rows = [[content_of(cell) for cell in (*row, *[()] * (n - len(row)))] for row in rows]
        self._natural = [max(1, *(row[i].cell_length for row in self._rows)) for i in range(n)]
        self._prefix = " " * cells_of(prefix)

    def widths(self, width: int) -> list[int]:
        """The cells of each column: no column is narrowed before those that are wider."""
        room = max(len(self._natural), width - len(self._prefix) - 3 * (len(self._natural) - 1))
        limit = max(self._natural)
        while limit > 1 and sum(min(n, limit) for n in self._natural) > room:
            limit -= 1
        return [min(n, limit) for n in self._natural]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return len(self._prefix) + sum(self._natural) + 3 * (len(self._natural) - 1)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return len(self._lines(width))

    def text_at(self, width: int) -> str:
        """Its lines as they are shown at a width."""
        return "\n".join(line.plain for line in self._lines(width))

    def _lines(self, width: int) -> list[Content]:
        widths, out = self.widths(width), []
        for n, row in enumerate(self._rows):
            cells = [cell.wrap(each) for cell, each in zip(row, widths, strict=True)]
            for y in range(max(map(len, cells))):
                line = Content(self._prefix)
                for x, (lines, each) in enumerate(zip(cells, widths, strict=True)):
                    cell = lines[y] if y < len(lines) else Content("")
                    fill = " " * max(0, each - cell.cell_length)
                    line = line.append(self._GAP if x else "").append(cell).append(fill)
                out.append(line.stylize("bold") if n == 0 else line)
            if n == 0:
                out.append(Content(self._prefix + "─┼─".join("─" * each for each in widths)))
        return out

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        return Content("\n").join(self._lines(width)).render_strips(width, height, style, options)


def visual_of(leaf: Leaf) -> Visual:
    """How a leaf that is no code is drawn."""
    if leaf.kind == "rule":
        return Hanging(Content("─" * 20, spans=[Span(0, 20, "dim")]), leaf.prefix, leaf.after)
    if leaf.kind == "table":
        return Table(leaf.rows, leaf.prefix)
    body = content_of(leaf.spans)
    if leaf.kind == "heading":
        body = Content("#" * leaf.level + " ").append(body).stylize("bold $text-primary")
    return Hanging(body, leaf.prefix, leaf.after)


def text_of(visual: Visual, width: int) -> str:
    """The text that a visual of this module shows at a width."""
    if isinstance(visual, Table):
        return visual.text_at(width)
    return visual.text if isinstance(visual, Hanging) else str(visual)


def highlighted(code: str, language: str) -> Content:
    """Code in the colours of its language; plain where the language is unknown."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound
    from textual.highlight import highlight

    code = shown(code).expandtabs(4)
    if not language or len(code) > _MOST_HIGHLIGHTED:
        return Content(code)
    try:
        get_lexer_by_name(language)
        return highlight(code, language=language)
    except (ClassNotFound, ValueError):
        return Content(code)


_MOST_HIGHLIGHTED = 200_000
