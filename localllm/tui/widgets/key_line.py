"""The last line of a screen: the keys that count where the focus is.

It is one widget, where the footer of Textual is one for each key: those are made anew, and the
screen laid out twice, whenever the focus goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.content import Content
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

_KEY, _LABEL = "bold $footer-key-foreground", "$footer-description-foreground"
_ALL = "f1"
"""It opens the page of all keys, on each screen."""


class _Row(NamedTuple):
    key: str
    shown: str
    label: str
    enabled: bool  # whether it can be pressed


class KeyLine(Widget, can_focus=False):
    """A click on a key presses it. Where there is less room the spaces go first, then the key of
    the palette, then the last keys, all but the one of the page that has them all."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyLine {
        dock: bottom; width: 100%; height: 1; text-wrap: nowrap; text-overflow: clip;
        color: $footer-foreground; background: $footer-background;
    }
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self.refresh()

    def render(self) -> Content:
        keys, palette = self._keys()
        width = self.size.width
        for pad in (" ", ""):
            line = Content("").join(_key(*each, pad) for each in keys)
            room = width - line.cell_length
            if palette is not None:
                right = Content("▏").stylize("$foreground 20%") + _key(*palette, " ")
                if room >= right.cell_length:
                    space = Content(" " * (room - right.cell_length))
                    return Content.assemble(line, space, right)
            elif room >= 0:
                return line
        return line if room >= 0 else _shortened(keys, width)

    def _keys(self) -> tuple[list[_Row], _Row | None]:
        """Those of the actions that are shown, the nearest to the focus first; the palette's."""
        shown: dict[str, _Row] = {}
        palette = None
        for key, (_, binding, enabled, _) in self.screen.active_bindings.items():
            row = _Row(binding.key, self.app.get_key_display(binding), binding.description, enabled)
            if binding.show:
                shown.setdefault(binding.action, row)
            elif self.app.ENABLE_COMMAND_PALETTE and key == self.app.COMMAND_PALETTE_BINDING:
                palette = row
        return list(shown.values()), palette

    def on_click(self, event: events.Click) -> None:
        if key := event.style.meta.get("key"):
            event.stop()
            self.app.simulate_key(key)


def _shortened(keys: Sequence[_Row], width: int) -> Content:
    """The first ones that have room beside the page of keys, whole."""
    last = next((row for row in keys if row.key == _ALL), None)
    kept = [row for row in keys if row is not last]
    while True:
        shown = [row for row in keys if row is last or row in kept]
        line = Content("").join(_key(*each, "") for each in shown)
        line += Content.styled("…", _LABEL)
        if line.cell_length <= width or not kept:
            return line
        kept.pop()


def _key(key: str, shown: str, label: str, enabled: bool, pad: str) -> Content:
    line = Content.assemble((f"{pad}{shown}{pad}", _KEY), (f"{'' if pad else ' '}{label} ", _LABEL))
    line = line.stylize(Style.from_meta({"key": key}))
    return line if enabled else line.stylize("dim")
