"""The messages of a conversation: the newest are mounted first, earlier ones when scrolled to."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message as Event
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from localllm.tui.conversations.kinds import Message
from localllm.tui.turns import Turns, in_turn
from localllm.tui.widgets.message import MessageView, Notice

FIRST = 12
"""Messages that are mounted when a conversation is opened, and at each further step."""


def _lasts(widget: Widget) -> bool:
    return isinstance(widget, Notice) and widget.lasts


class Bar(ScrollBar):
    """A scroll bar that is drawn anew only if it looks different then: while an answer grows, its
    figures change far more often than its cells."""

    def __init__(self, thickness: int) -> None:
        super().__init__(vertical=True, thickness=thickness)
        self._drawn: tuple[object, list[Strip]] = (None, [])

    def _thumb(self) -> tuple[int, int]:
        """Where it begins and ends, in eighths of a line."""
        lines, window, whole = self.size.height, self.window_size, self.window_virtual_size
        if not 0 < window < whole:
            return 0, 0
        height = max(1.0, window * lines / whole)
        begin = int((lines - height) * self.position / (whole - window) * 8)
        return begin, begin + math.ceil(height * 8)

    def render_lines(self, crop: Region) -> list[Strip]:
        looks = self.mouse_over, self.grabbed is not None, self.app.theme, self.opacity
        key = crop, self.size, self._thumb(), looks
        if self._drawn[0] != key:
            self._drawn = key, super().render_lines(crop)
        return self._drawn[1]


class Transcript(VerticalScroll, can_focus=False):
    """Follows an answer as it grows, unless the user scrolled up."""

    class WantsEarlier(Event):
        """Messages before `before` are to be given to `show_earlier`."""

        def __init__(self, before: int) -> None:
            super().__init__()
            self.before = before

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.turns = Turns()  # a remark may come while another conversation is opened
        self._held: list[Message] = []  # read, and not mounted yet
        self._n_earlier = 0  # not read yet
        self._asking = False
        self._earlier = Static(id="earlier", markup=False)

    def on_mount(self) -> None:
        self.anchor()

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = Bar(self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        # The messages were laid out, which is why this is called; once more is asked for where the
        # scroll bar comes or goes.
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    def render_lines(self, crop: Region) -> list[Strip]:
        # Nothing stands between messages, so that all its lines are alike.
        return super().render_lines(Region(crop.x, 0, crop.width, 1)) * crop.height

    @property
    def n_mounted(self) -> int:
        """How many messages are widgets now."""
        return len(self.views)

    @property
    def views(self) -> list[MessageView]:
        """The messages that are mounted and stay, the oldest first."""
        return [view for view in self.query(MessageView) if not view._pruning]

    def view(self, message: int) -> MessageView | None:
        """The widget of a message, if it is mounted."""
        found = self.query(f"#message-{message}")
        return found.first(MessageView) if found else None

    @in_turn
    async def open(
        self, messages: Sequence[Message], n_earlier: int, growing: int | None = None
    ) -> None:
        """Shows another conversation, from its end. growing: the message that is being written."""
        await self.remove_children()
        self._earlier = Static(id="earlier", markup=False)
        self._held, self._n_earlier, self._asking = list(messages[:-FIRST]), n_earlier, False
        await self.mount_all(
            [
                self._earlier,
                *(MessageView(each, growing=each.id == growing) for each in messages[-FIRST:]),
            ]
        )
        self._show_earlier_line()
        self.follow()

    def follow(self) -> None:
        """To the end, and with what comes."""
        self.anchor()

    @in_turn
    async def add(self, *widgets: Widget) -> None:
        """Shows something below all that is there."""
        await self.mount_all(widgets)

    @in_turn
    async def cut(self, keep: int | None) -> None:
        """Takes away all messages, and the notices that do not last, below one; None: from the
        first on."""
        view = self.view(keep) if keep is not None else None
        children = list(self.children)
        begin = children.index(view) + 1 if view is not None else children.index(self._earlier) + 1
        for widget in children[begin:]:
            if not _lasts(widget):
                await widget.remove()

    def clear(self, keep: Container[int]) -> None:
        """Takes away all that is there now but some messages and the notices that last; what is
        added from now on stays."""
        self._held, self._n_earlier = [], 0
        self._earlier.display = False
        for widget in self.query(".message, .notice"):
            if not (
                _lasts(widget) or (isinstance(widget, MessageView) and widget.message.id in keep)
            ):
                widget.remove()

    @in_turn
    async def show_earlier(self, messages: Sequence[Message], n_earlier: int) -> None:
        """Takes in messages that were read on `WantsEarlier`."""
        self._held, self._n_earlier, self._asking = list(messages), n_earlier, False
        await self._mount_held()

    @in_turn
    async def reveal(self, message: int) -> MessageView | None:
        """Mounts what is held until a message is there."""
        while self.view(message) is None and self._held:
            await self._mount_held()
        return self.view(message)

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if new <= 1 and old > new:
            self.want_earlier()

    def want_earlier(self) -> None:
        """Shows the messages before the first, if there are any."""
        if self._held:
            self.run_worker(self._mount_held(), group="earlier", exclusive=False)
        elif self._n_earlier and not self._asking and (views := self.views):
            self._asking = True
            self.post_message(self.WantsEarlier(views[0].message.id))

    @in_turn
    async def _mount_held(self) -> None:
        page, self._held = self._held[-FIRST:], self._held[:-FIRST]
        if not page:
            return
        height, at = self.virtual_size.height, self.scroll_y
        first = self.views[0] if self.views else None
        await self.mount_all([MessageView(message) for message in page], after=self._earlier)
        self._show_earlier_line()

        def keep_place() -> None:
            self.scroll_to(y=at + self.virtual_size.height - height, animate=False)

        if first is not None:
            self.call_after_refresh(keep_place)

    def _show_earlier_line(self) -> None:
        n = len(self._held) + self._n_earlier
        self._earlier.update(f"{n:,} earlier messages: scroll up" if n else "")
        self._earlier.display = bool(n)
