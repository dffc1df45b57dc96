"""Lines of text below each other, and widgets between them: what messages are made of.

A sheet draws its text line by line and keeps what it drew: what a further draw costs depends on the
lines that are in sight and on the text that changed, not on how much there is. Its widgets lie in
gaps of the text, whose places it knows by itself: no box is computed again while text grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import NULL_OFFSET, NULL_SPACING, Offset, Region, Size
from textual.layout import Layout, WidgetPlacement
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widget import Widget

from localllm.tui.blocks import text_of

if TYPE_CHECKING:
    from textual.css.styles import RulesMap

_WIDTHS = 4
"""Widths whose heights a part knows: with and without the list of conversations, before and after
the terminal got another size."""
_BELOW = 1 << 30  # a line below all text


class Part:
    """Text of a sheet. apart: an empty line comes before it. look: the component class that it is
    drawn in. n_most: lines that are shown, all by default."""

    __slots__ = ("_drawn", "_heights", "apart", "look", "n_most", "visual")

    def __init__(
        self, visual: Visual, *, apart: bool = False, look: str = "", n_most: int | None = None
    ) -> None:
        self.visual, self.apart, self.look, self.n_most = visual, apart, look, n_most
        self._heights: dict[int, tuple[int, int]] = {}
        self._drawn: tuple[object, list[Strip]] = (None, [])

    def size_at(self, rules: RulesMap, width: int) -> tuple[int, int]:
        """Its lines on the screen, and those of its text as it can be copied."""
        found = self._heights.get(width)
        if found is None:
            height = self.visual.get_height(rules, width)
            if self.n_most is not None:
                height = min(height, self.n_most)
            n_lines = text_of(self.visual, width).count("\n") + 1
            if len(self._heights) == _WIDTHS:
                del self._heights[next(iter(self._heights))]
            found = self._heights[width] = (self.apart + height, self.apart + n_lines)
        return found


class Placed(NamedTuple):
    """Where something lies: its first line, how many it has, and the first line of its text among
    all text of the sheet."""

    y: int
    height: int
    first: int
    item: Part | Widget


class Gaps(Layout):
    """Puts the widgets of a sheet where it wants them."""

    name = "gaps"

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> list[WidgetPlacement]:
        shown = set(children)
        return [
            WidgetPlacement(
                Region(0, each.y, size.width, each.height), NULL_OFFSET, NULL_SPACING, each.item
            )
            for each in cast(Sheet, parent).placed(size.width)
            if isinstance(each.item, Widget) and each.item in shown
        ]


class Sheet(Widget):
    """Parts and widgets below each other, as wide as it is. Its widgets have no margins."""

    DEFAULT_CSS = "Sheet { width: 1fr; height: auto; }"

    def __init__(
        self, items: Iterable[Part | Widget] = (), *, classes: str = "", id: str | None = None
    ) -> None:
        super().__init__(classes=classes, id=id)
        self.items: list[Part | Widget] = list(items)
        self.n_drawn = 0  # lines of text that were made
        self._default_layout = Gaps()  # type: ignore[assignment]
        self._known: tuple[object, list[Placed]] = (None, [])
        self._heights: dict[Widget, tuple[object, int]] = {}

    # ---- what is shown

    def put(self, at: int, item: Part | Widget, *, insert: bool = False) -> None:
        """Shows something in the place of an item, or before it, or below all. A widget has to be
        mounted by the caller."""
        old = None if insert or at >= len(self.items) else self.items[at]
        self.items[at : at if insert else at + 1] = [item]
        self._known = (None, [])
        width = self.size.width
        if width and isinstance(old, Part) and isinstance(item, Part):
            rules = self._rules
            height = item.size_at(rules, width)[0]
            if old.size_at(rules, width)[0] == height:
                y = next(each.y for each in self.placed(width) if each.item is item)
                self.refresh(Region(0, y, width, height))
                return
        self._lay_out()

    def cut(self, at: int) -> None:
        """Shows nothing from an item on."""
        del self.items[at:]
        self._heights.clear()
        self._known = (None, [])
        self._lay_out()

    def _lay_out(self) -> None:
        # Textual (8.2) counts a wish once until it is heard, and boxes are kept by that count: one
        # that was measured in between would stay.
        self._layout_updates += 1
        self.refresh(layout=True)

    # ---- where it is

    @property
    def _rules(self) -> RulesMap:
        return cast("RulesMap", self.styles)  # which is what Textual itself gives

    def placed(self, width: int) -> list[Placed]:
        """All that is shown, at a width of the content."""
        key = width, self._layout_updates  # counts what its widgets ask for, too
        if self._known[0] != key:
            self._known = (key, list(self._places(width)))
        return self._known[1]

    def _places(self, width: int) -> Iterator[Placed]:
        y = first = 0
        rules = self._rules
        for item in self.items if width > 0 else ():
            height = n_lines = 0
            if isinstance(item, Part):
                height, n_lines = item.size_at(rules, width)
            elif item.parent is self and item.display:
                height = self._height(item, width)
            else:
                continue
            yield Placed(y, height, first, item)
            y, first = y + height, first + n_lines

    def _height(self, item: Widget, width: int) -> int:
        """The lines of a widget, measured anew if it asked for a layout or has other styles."""
        key = width, item._layout_updates, item.styles._cache_key
        found = self._heights.get(item)
        if found is None or found[0] != key:
            gutter = item.gutter
            inner = max(0, width - gutter.width)
            viewport = self.app.viewport_size
            height = item.get_content_height(Size(inner, 0), viewport, inner) + gutter.height
            found = self._heights[item] = key, height
        return found[1]

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        placed = self.placed(width) if width else []
        return placed[-1].y + placed[-1].height if placed else 0

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        # It does not scroll: because it has grown, nothing is to be laid out once more.
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    # ---- how it looks

    def render_lines(self, crop: Region) -> list[Strip]:
        # What stands beside and beneath the text is the same on every line.
        blank = super().render_lines(Region(0, _BELOW, self.outer_size.width, 1))[0]
        rows = [blank] * crop.height
        top = self.gutter.top
        for y, height, first, item in self.placed(self.size.width):
            begin, end = max(crop.y, y + top), min(crop.bottom, y + top + height)
            if begin < end and isinstance(item, Part):
                strips = self._strips(item, first, blank)
                rows[begin - crop.y : end - crop.y] = strips[begin - y - top : end - y - top]
        if crop.column_span != (0, self.outer_size.width):
            rows = [strip.crop(*crop.column_span) for strip in rows]
        hover = self.hover_style
        if hover._link_id and hover._meta and "@click" in hover.meta:
            rows = [strip.style_links(hover.link_id, self.link_style_hover) for strip in rows]
        return rows

    def render_line(self, y: int) -> Strip:
        left = self.gutter.left
        strip = self.render_lines(Region(0, y + self.gutter.top, self.outer_size.width, 1))[0]
        return strip.crop(left, left + self.size.width)

    def _strips(self, part: Part, first: int, blank: Strip) -> list[Strip]:
        """The lines of a part, with what stands beside it. first: the line of the sheet's text that
        is its first, by which text is selected."""
        width = self.size.width
        style = self.get_visual_style(part.look) if part.look else self.visual_style
        selection, key = self.text_selection, (width, style, first, blank, self.app.theme)
        if selection is None and part._drawn[0] == key:
            return part._drawn[1]
        first += part.apart
        chosen = None
        if selection is not None:
            selection = Selection(
                *(at if at is None else at - Offset(0, first) for at in selection)
            )
            chosen = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        options = RenderOptions(self._get_style, self._rules, selection, chosen)
        strips = part.visual.render_strips(width, part.n_most, style, options)
        strips = [self._framed(_moved(strip, first), blank) for strip in strips]
        strips = [blank] * part.apart + strips
        self.n_drawn += len(strips)
        if selection is None:
            part._drawn = (key, strips)
        return strips

    def _framed(self, strip: Strip, blank: Strip) -> Strip:
        """A line of text between what is beside it, as wide as the sheet."""
        left, width = self.gutter.left, self.size.width
        strip = strip._apply_link_style(self.link_style)
        for each in self.get_line_filters():
            strip = strip.apply_filter(each, self.background_colors[1])
        if strip.cell_length > width:
            strip = strip.crop(0, width)
        return Strip.join(
            [
                blank.crop(0, left),
                strip,
                blank.crop(left + strip.cell_length, blank.cell_length),
            ]
        )

    # ---- what is selected of it

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        width = self.size.width
        texts = [
            "\n" * item.apart + text_of(item.visual, width)
            for item in self.items
            if isinstance(item, Part)
        ]
        return (selection.extract("\n".join(texts)), "\n") if any(texts) else None


def _moved(strip: Strip, first: int) -> Strip:
    """Text that knows which lines of a sheet it shows, from those of its part."""
    if not first:
        return strip
    out: list[Segment] = []
    for text, style, control in strip:
        at = style.meta.get("offset") if style is not None and style._meta is not None else None
        if style is not None and at is not None:
            style += RichStyle.from_meta({"offset": (at[0], at[1] + first)})
        out.append(Segment(text, style, control))
    return Strip(out, strip.cell_length)
