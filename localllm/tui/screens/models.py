"""Models: those that are here and those of the catalogue, to choose, pull, look at and delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import DataTable, Input, Static
from textual.widgets.data_table import CellDoesNotExist
from textual.worker import get_current_worker

from localllm.errors import LocalLLMError
from localllm.plain_text import escape_line, size_text
from localllm.tui.library import Library, ModelRow, row_of_file
from localllm.tui.model_texts import details_text, error_text
from localllm.tui.opening import LoadOptions
from localllm.tui.outlook import Outlook
from localllm.tui.pulls import Pull, Pulls
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.own_keys import KeyedScreen
from localllm.tui.widgets.field import Field
from localllm.tui.widgets.fitted_table import FittedTable
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.live_bar import speed_text
from localllm.tui.widgets.load_options import LoadOptionsBar
from localllm.tui.widgets.pull_bars import PullBars

#: Titles, and cells; the name has what the others leave, but not less.
COLUMNS = {"Name": 20, "State": 11, "Fits here": 12, "tok/s": 5, "Size": 9, "Quant": 8}
_BESIDE = 120  # cells from which the details stand beside the table
_LONGEST_NOTE = 600  # characters
_DETAILS_AFTER_S = 0.1  # the cursor may only be passing


@dataclass(frozen=True)
class Choice:
    """A model to go on with, and how it is to be loaded."""

    name: str
    options: LoadOptions


class ModelTable(FittedTable):
    """A click chooses the row only where it is under the cursor already."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Use")]


class ModelsScreen(KeyedScreen["Choice | None"]):
    """Ends with a `Choice`, or with None where the user only looked. Pulls go on without it."""

    TITLE = "Models"
    AUTO_FOCUS = "DataTable"
    DEFAULT_CSS = """
    ModelsScreen #filter { height: 1; border: none; padding: 0 1; background: $panel; }
    ModelsScreen #body { height: 1fr; layout: vertical; }
    ModelsScreen.-wide #body { layout: horizontal; }
    ModelsScreen DataTable { height: 1fr; width: 1fr; }
    ModelsScreen #details { height: 7; padding: 0 1; background: $surface; }
    ModelsScreen.-wide #details { height: 1fr; width: 40; }
    ModelsScreen #details.-hidden { display: none; }
    ModelsScreen #details Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("p", "pull", "Pull"),
        Binding("x", "stop", "Stop pull"),
        Binding("d,delete", "delete", "Delete"),
        Binding("i", "details", "Details"),
        Binding("k", "kv", "KV type"),
        Binding("c", "context", "Context"),
        Binding("slash,ctrl+f", "filter", "Filter"),
        Binding("r,f5", "reload", "Reload"),
    ]

    class Listed(Message):
        """The rows are known."""

        def __init__(self, rows: list[ModelRow], notes: list[str]) -> None:
            super().__init__()
            self.rows, self.notes = rows, notes

    class Judged(Message):
        """What is to be expected of some models, by name; and which ones suit best."""

        def __init__(self, outlooks: dict[str, Outlook], best: set[str] | None = None) -> None:
            super().__init__()
            self.outlooks, self.best = outlooks, best

    class Known(Message):
        """The details of a model."""

        def __init__(self, name: str, facts: list[tuple[str, str]]) -> None:
            super().__init__()
            self.name, self.facts = name, facts

    class Deletable(Message):
        """What a deletion would take."""

        def __init__(self, name: str, label: str, n_bytes: int) -> None:
            super().__init__()
            self.name, self.label, self.n_bytes = name, label, n_bytes

    class Told(Message):
        """Something to say, and whether it is an error."""

        def __init__(self, text: str, *, is_error: bool = False, reload: bool = False) -> None:
            super().__init__()
            self.text, self.is_error, self.reload = text, is_error, reload

    class PullChanged(Message):
        """A pull is further."""

        def __init__(self, pull: Pull) -> None:
            super().__init__()
            self.pull = pull

    def __init__(
        self,
        library: Library,
        pulls: Pulls | None,
        *,
        current: str | None = None,
        options: LoadOptions | None = None,
    ) -> None:
        """pulls: None where nothing can be pulled. current: the model in use, and its options."""
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_BESIDE, "-wide")]
        self._library, self._pulls, self._current = library, pulls, current
        self._options = options
        self._rows: list[ModelRow] = []
        self._outlooks: dict[str, Outlook] = {}
        self._best: set[str] = set()
        self._facts: dict[str, list[tuple[str, str]]] = {}
        self._unwatch: Callable[[], None] | None = None
        self._details_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Field(placeholder="Filter, or a name to pull", id="filter", compact=True)
        with Horizontal(id="body"):
            yield ModelTable(COLUMNS, "Name")
            with VerticalScroll(id="details"):
                yield Static("looking for models ...", markup=False)
        yield PullBars()
        yield LoadOptionsBar(self._options)
        yield KeyLine()

    def on_mount(self) -> None:
        self._table.focus()
        if self._pulls is not None:
            self._unwatch = self._pulls.watch(self._pull_changed)
            self._show_pulls()
        self.action_reload()

    def _pull_changed(self, pull: Pull) -> None:
        self.post_message(self.PullChanged(pull))

    def on_unmount(self) -> None:
        if self._unwatch is not None:
            self._unwatch()

    @property
    def _table(self) -> ModelTable:
        return self.query_one(ModelTable)

    @property
    def _load_options(self) -> LoadOptionsBar:
        return self.query_one(LoadOptionsBar)

    # What comes from threads.

    def action_reload(self) -> None:
        self._facts.clear()
        self.run_worker(self._read, thread=True, exclusive=True, group="rows")

    def _read(self) -> None:
        worker, library = get_current_worker(), self._library
        try:
            rows, notes = library.rows()
            current = self._current or ""
            if current and library.is_local and all(row.name != current for row in rows):
                rows = [*filter(None, [row_of_file(current)]), *rows]
            if worker.is_cancelled:
                return
            self.post_message(self.Listed(rows, notes))
            for row in rows:
                if worker.is_cancelled:
                    return
                if row.is_here:  # the others are quick, and come together
                    self.post_message(self.Judged({row.name: library.outlook(row)}))
            others = {row.name: library.outlook(row) for row in rows if not row.is_here}
            self.post_message(self.Judged(others, library.recommended()))
        except LocalLLMError as e:
            self.post_message(self.Told(error_text(e), is_error=True))

    def on_models_screen_listed(self, message: Listed) -> None:
        self._rows = message.rows
        for note in message.notes:
            self._tell(note, is_error=True)
        self._fill()

    def on_models_screen_judged(self, message: Judged) -> None:
        self._outlooks |= message.outlooks
        if message.best is not None:
            self._best = message.best
        for row in self._rows:
            if row.name in message.outlooks:
                self._update(row)
        self._show_details()

    def on_models_screen_known(self, message: Known) -> None:
        self._facts[message.name] = message.facts
        self._show_details()

    def on_models_screen_told(self, message: Told) -> None:
        self._tell(message.text, is_error=message.is_error)
        if message.reload:
            self.action_reload()

    def on_models_screen_pull_changed(self, message: PullChanged) -> None:
        self._show_pulls()
        pull = message.pull
        row = next((each for each in self._rows if each.name == pull.name), None)
        if row is not None and not pull.is_over:
            self._update(row)
        if pull.is_over:
            self._tell(pull.sentence, is_error=bool(pull.error))
            self.action_reload()

    # The table.

    def _fill(self) -> None:
        """All rows that match, with the cursor on the model where it was."""
        before = self.highlighted
        words = self.query_one("#filter", Input).value.lower().split()
        table = self._table
        table.clear()
        shown = [row for row in self._rows if row.matches(words)]
        for row in shown:
            table.add_row(*self._cells(row), key=row.name)
        wanted = before.name if before else self._current
        at = next((i for i, row in enumerate(shown) if row.name == wanted), 0)
        table.move_cursor(row=at)
        self._show_details()

    def _update(self, row: ModelRow) -> None:
        for title, cell in zip(COLUMNS, self._cells(row), strict=True):
            try:
                self._table.update_cell(row.name, title, cell)
            except CellDoesNotExist:  # it does not match the filter
                return

    def _cells(self, row: ModelRow) -> list[Content]:
        outlook = self._outlooks.get(row.name)
        speed = outlook.tokens_per_s if outlook else None
        likely = outlook.file_bytes if outlook else 0
        texts = (
            row.path.name if row.path and row.name == str(row.path) else row.name,
            self._state(row),
            outlook.fit if outlook else "...",
            speed_text(speed) if speed else "-",
            size_text(row.size) if row.size else f"~{size_text(likely)}" if likely else "-",
            row.quantization or (outlook.quantization if outlook else "") or "-",
        )
        return [Content(escape_line(text)) for text in texts]

    def _state(self, row: ModelRow) -> str:
        pulls = self._pulls.all() if self._pulls else []
        pull = next((each for each in pulls if each.name == row.name and not each.is_over), None)
        if pull is not None:
            return pull.state if pull.share is None else f"pulling {pull.share:.0%}"
        if row.name == self._current:
            return "in use"
        if row.state == "partial" and row.size:
            return f"{row.downloaded / row.size:.0%} here"
        if row.state == "available":
            return "best fit" if row.name in self._best else "to pull"
        return {"ready": "here", "served": "served"}.get(row.state, row.state)

    @property
    def highlighted(self) -> ModelRow | None:
        """The model under the cursor."""
        table = self._table
        if not table.is_valid_row_index(table.cursor_row):
            return None
        name = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return next((row for row in self._rows if row.name == name), None)

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        self._show_details()
        if self._details_timer is not None:
            self._details_timer.stop()
        self._details_timer = self.set_timer(_DETAILS_AFTER_S, self._ask_details)

    @on(DataTable.RowSelected)
    def _selected(self) -> None:
        self._choose()

    @on(Input.Changed, "#filter")
    def _filtered(self) -> None:
        self._fill()

    @on(Input.Submitted, "#filter")
    def _to_table(self) -> None:
        self._table.focus()

    def on_key(self, event: events.Key) -> None:
        if event.key == "down" and self.query_one("#filter").has_focus:
            event.stop()
            self._table.focus()

    # The details.

    def _ask_details(self) -> None:
        row = self.highlighted
        if row is not None and row.name not in self._facts:
            self.run_worker(lambda: self._look(row), thread=True, exclusive=True, group="details")

    def _look(self, row: ModelRow) -> None:
        worker = get_current_worker()
        try:
            facts = self._library.details(row)
        except LocalLLMError as e:
            facts = [("problem", error_text(e))]
        if not worker.is_cancelled:
            self.post_message(self.Known(row.name, facts))

    def _show_details(self) -> None:
        row = self.highlighted
        outlook = self._outlooks.get(row.name) if row else None
        text = details_text(row, outlook, self._facts.get(row.name)) if row else ""
        if row is None and self._rows:
            name = self.query_one("#filter", Input).value.strip()
            text = "Nothing matches."
            if self._pulls is not None and name:
                text += f" Pull takes {escape_line(name)} as a name: of the catalogue, user/repo "
                text += "of the Hub, or an address."
        self.query_one("#details Static", Static).update(Content(text))
        self._load_options.show(outlook)

    # What the user does.

    def _choose(self) -> None:
        row = self.highlighted
        if row is None or (not row.is_here and row.can_pull):
            self._ask_to_pull(row)
            return
        if not row.is_here or row.state == "damaged":
            self._tell(f"{row.name} is {row.state}: pull it first", is_error=True)
            return
        if problem := self._load_options.problem:
            self._tell(problem, is_error=True)
            self._load_options.focus_context()
            return
        self.dismiss(Choice(row.name, self._load_options.options))

    def _ask_to_pull(self, row: ModelRow | None) -> None:
        name = row.name if row else self.query_one("#filter", Input).value.strip()
        if not name or self._pulls is None:
            return
        if any(each.name == name and not each.is_over for each in self._pulls.all()):
            self._tell(f"{name} is being pulled already")
            return
        outlook = self._outlooks.get(name)
        size = "" if row is None or row.size is None else f", {size_text(row.size)}"
        why = f"\n\n{outlook.why}" if outlook and outlook.why else ""

        def answered(agreed: bool | None) -> None:
            if agreed:
                self._start(name)

        question = f"{name} is not here yet{size}. Pull it?{why}"
        self.app.push_screen(ConfirmScreen(question, "Pull", "Not now"), answered)

    def action_pull(self) -> None:
        row = self.highlighted
        if self._pulls is None:
            self._tell("Nothing can be pulled from here", is_error=True)
        elif row is not None and not row.can_pull:
            self._tell(f"{row.name} is here already")
        else:
            self._ask_to_pull(row)

    def _start(self, name: str) -> None:
        if self._pulls is not None and not self._pulls.start(name):
            self._tell(f"{name} is being pulled already")

    def action_stop(self) -> None:
        """Stops the pull of the model under the cursor, else the last one that runs."""
        row, pulls = self.highlighted, self._pulls
        running = [each.name for each in (pulls.all() if pulls else []) if not each.is_over]
        if pulls is None or not running:
            self._tell("No pull is running")
            return
        pulls.cancel(row.name if row and row.name in running else running[-1])

    def on_pull_bars_wanted(self, message: PullBars.Wanted) -> None:
        if self._pulls is None:
            return
        if message.action == "stop":
            self._pulls.cancel(message.name)
        elif message.action == "again":
            self._pulls.start(message.name)
        else:
            self._pulls.dismiss(message.name)
            self._show_pulls()

    def _show_pulls(self) -> None:
        if self._pulls is not None:
            self.query_one(PullBars).show(self._pulls.all())

    def action_delete(self) -> None:
        row = self.highlighted
        if row is None:
            return
        if row.name == self._current:
            self._tell(f"{row.name} is in use: choose another model first", is_error=True)
        elif not self._library.is_local or not row.can_delete:
            owner = row.source if row.foreign else "nothing of it is here"
            self._tell(f"{row.name} cannot be deleted here ({owner})", is_error=True)
        else:
            self._in_thread(lambda: self._measure(row.name))

    def _measure(self, name: str) -> None:
        self.post_message(self.Deletable(name, *self._library.deletion(name)))

    def on_models_screen_deletable(self, message: Deletable) -> None:
        def answered(agreed: bool | None) -> None:
            if agreed:
                self._in_thread(lambda: self._delete(message.name))

        question = f"Delete {message.label} ({size_text(message.n_bytes)})?"
        self.app.push_screen(ConfirmScreen(question, "Delete"), answered)

    def _delete(self, name: str) -> None:
        notes = self._library.delete(name)
        self.post_message(self.Told(". ".join([f"{name} deleted", *notes]), reload=True))

    def _in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except LocalLLMError as e:
                self.post_message(self.Told(error_text(e), is_error=True))

        self.run_worker(guarded, thread=True, group="work")

    def action_details(self) -> None:
        self.query_one("#details").toggle_class("-hidden")

    def action_filter(self) -> None:
        self.query_one("#filter").focus()

    def action_kv(self) -> None:
        self._load_options.next_kv_type()

    def action_context(self) -> None:
        self._load_options.focus_context()

    @on(LoadOptionsBar.Done)
    def _context_given(self) -> None:
        self._table.focus()

    def action_back(self) -> None:
        """Out of a field first, then out of the screen."""
        if isinstance(self.focused, Input):
            self._table.focus()
        else:
            self.dismiss(None)

    def _tell(self, text: str, *, is_error: bool = False) -> None:
        self.notify(
            escape_line(text)[:_LONGEST_NOTE],
            severity="error" if is_error else "information",
            markup=False,
        )
