"""A table of which one column has the room that the others leave."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.widgets import DataTable


class FittedTable(DataTable[Content]):
    """columns: titles, which are keys too, and cells. elastic: the one that has at least so many,
    and more where the table is wider."""

    def __init__(self, columns: Mapping[str, int], elastic: str) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._cells_of, self._elastic = dict(columns), elastic

    def on_mount(self) -> None:
        for title, width in self._cells_of.items():
            self.add_column(title, key=title, width=width)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        taken = sum(self._cells_of.values()) + 2 * self.cell_padding * len(self._cells_of)
        room = self.size.width - self.scrollbar_size_vertical - taken
        for column in self.ordered_columns:
            if column.key.value == self._elastic:
                column.width = self._cells_of[self._elastic] + max(0, room)
        self._update_count += 1  # what is drawn already is of the width before
        self.refresh(layout=True)
