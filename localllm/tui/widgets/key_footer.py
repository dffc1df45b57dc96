"""The line of keys at the bottom of a screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from localllm.plain_text import cells_of

_AROUND, _AROUND_COMPACT = 3, 2
"""Cells that a key takes beside its texts."""


class KeyFooter(Footer):
    """Where its keys have no room, there is less space between them; then the key of the palette
    goes, which F1 names as well."""

    DEFAULT_CSS = "KeyFooter.-narrow .-command-palette { display: none; }"

    def compose(self) -> ComposeResult:
        yield from super().compose()
        self.call_after_refresh(self._fit)

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        keys = list(self.query(FooterKey))
        texts = [cells_of(key.key_display) + cells_of(key.description) for key in keys]
        width, needed = self.size.width, sum(texts)
        self.compact = needed + len(keys) * _AROUND > width
        self.set_class(needed + len(keys) * _AROUND_COMPACT > width, "-narrow")
