"""The screen of models, by keyboard and by mouse, with a scripted library and scripted pulls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input
from tui.waiting import notes_of, until

from localllm.errors import DownloadError, LocalLLMError
from localllm.store.transfer.patience import KEPT
from localllm.store.transfer.progress import Progress
from localllm.tui.library import AVAILABLE, PARTIAL, READY, ModelRow
from localllm.tui.opening import LoadOptions
from localllm.tui.outlook import FITS, TOO_LARGE, Outlook
from localllm.tui.pulls import FilePart, FileSet, Pull, Pulls, Tell
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.models import Choice, ModelsScreen, ModelTable
from localllm.tui.widgets.load_options import LoadOptionsBar
from localllm.tui.widgets.pull_bars import PullRow, below_text, whole_text

SIZES = [(60, 20), (120, 40)]
PLANS = ((2048, "f16", 173_000_000, True), (2048, "q8_0", 150_000_000, True),
         (8192, "f16", 314_000_000, True), (8192, "q8_0", 225_000_000, True))  # fmt: skip


class FakeLibrary:
    is_local = True

    def __init__(self, rows: list[ModelRow] | None = None) -> None:
        self.models = rows if rows is not None else [
            ModelRow("smollm2:135m", READY, 98_000_000, "Q4_1", "llama", "apache-2.0",
                     path=Path("x.gguf")),
            ModelRow("old:1b", READY, 700_000_000, "Q8_0", about="An older one"),
            ModelRow("qwen3:0.6b", AVAILABLE, licence="Apache-2.0", about="Thinks"),
            ModelRow("qwen3:32b", AVAILABLE, about="Large"),
            ModelRow("half:1b", PARTIAL, 1000, downloaded=250),
        ]  # fmt: skip
        self.deleted: list[str] = []
        self.looked: list[str] = []
        self.error: LocalLLMError | None = None
        self.ready = threading.Event()
        self.ready.set()

    def rows(self) -> tuple[list[ModelRow], list[str]]:
        self.ready.wait()
        if self.error:
            raise self.error
        return [row for row in self.models if row.name not in self.deleted], []

    def outlook(self, row: ModelRow) -> Outlook:
        if row.name == "qwen3:32b":
            return Outlook(TOO_LARGE, "It takes 20 GB; 8 GB are free.", 0.5, "assumed")
        return Outlook(FITS, "It takes 314 MB.", 55.5, "assumed", 8192, 8192, plans=PLANS)

    def recommended(self) -> set[str]:
        return {"qwen3:0.6b"}

    def details(self, row: ModelRow) -> list[tuple[str, str]]:
        self.looked.append(row.name)
        return [("licence", row.licence or "not stated"), ("template", "in the file\x1b[2J")]

    def deletion(self, name: str) -> tuple[str, int]:
        return name, 700_000_000

    def delete(self, name: str) -> list[str]:
        self.deleted.append(name)
        return ["Its file stays where it is: /x"]


FILES = (FilePart("a.gguf", 40, 40), FilePart("b.gguf", 10, 100))


class FakeBring:
    """Waits for `go` at each step; `fails` ends it with an error."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.fails: BaseException | None = None
        self.n = 0

    def __call__(self, pull: Pull, tell: Tell) -> str:
        self.n += 1
        moment = Pull(pull.name, stage="downloading", n_bytes=50, size=200, bytes_per_s=10.0,
                      eta_s=15.0, files=FILES)  # fmt: skip
        tell(moment)
        self.begun.set()
        while not self.go.wait(0.005):
            tell(moment)
        if self.fails is not None:
            raise self.fails
        return f"{pull.name}-q4_k_m"


class Host(App[None]):
    def __init__(self, library: FakeLibrary, pulls: Pulls | None, **more: Any) -> None:
        super().__init__()
        self.library, self.pulls, self.more = library, pulls, more
        self.result: object = "open"

    def open(self) -> ModelsScreen:
        screen = ModelsScreen(self.library, self.pulls, **self.more)
        self.push_screen(screen, self.closed)
        return screen

    def closed(self, result: Choice | None) -> None:
        self.result = result


Use = Callable[[Pilot[Any], Host, ModelsScreen], Coroutine[Any, Any, None]]


def use(
    body: Use, size: tuple[int, int] = (80, 24), library: FakeLibrary | None = None,
    bring: FakeBring | None = None, **more: Any,
) -> Host:  # fmt: skip
    pulls = Pulls(bring) if bring is not None else None
    app = Host(library or FakeLibrary(), pulls, **more)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            screen = app.open()
            await until(pilot, lambda: screen.is_mounted and table(screen).row_count)
            await until(pilot, lambda: "best fit" in cells(screen))
            await body(pilot, app, screen)

    try:
        asyncio.run(run())
    finally:
        if bring is not None:
            bring.go.set()
        if pulls is not None:
            pulls.close()
    return app


def table(screen: ModelsScreen) -> ModelTable:
    return screen.query_one(ModelTable)


def cells(screen: ModelsScreen) -> list[str]:
    shown = table(screen)
    return [str(cell) for i in range(shown.row_count) for cell in shown.get_row_at(i)]


def text(screen: ModelsScreen, selector: str) -> str:
    return str(screen.query_one(selector).render())


@pytest.mark.parametrize("size", SIZES)
def test_rows_badges_and_details(size: tuple[int, int]) -> None:
    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        rows = [[str(cell) for cell in table(screen).get_row_at(i)] for i in range(5)]
        assert rows[0] == ["smollm2:135m", "in use", "fits", "55.5", "98.0 MB", "Q4_1"]
        assert rows[2][:3] == ["qwen3:0.6b", "best fit", "fits"]
        assert rows[3][1:4] == ["to pull", "too large", "0.5"]
        assert rows[4][1] == "25% here"
        await until(pilot, lambda: "licence: apache-2.0" in text(screen, "#details Static"))
        shown = text(screen, "#details Static")
        assert "template: in the file\\x1b[2J" in shown
        assert "about 55.5 tokens/s (assumed)" in shown
        assert "8192  q8_0  225.0 MB fits" in shown
        for _ in range(3):
            await pilot.press("down")
        await until(pilot, lambda: "too large: It takes 20 GB" in text(screen, "#details Static"))
        await until(pilot, lambda: "qwen3:32b" in app.library.looked)
        await pilot.press("i")
        assert not screen.query_one("#details").display
        await pilot.press("i")
        assert screen.query_one("#details").display

    use(body, size, current="smollm2:135m")


def test_filter() -> None:
    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("slash", *"qw th")
        await until(pilot, lambda: table(screen).row_count == 1)
        assert screen.highlighted is not None
        assert screen.highlighted.name == "qwen3:0.6b"
        await pilot.press("enter")
        assert screen.focused is table(screen)
        await pilot.press("slash", *"z")
        await until(pilot, lambda: table(screen).row_count == 0)
        assert "Nothing matches" in text(screen, "#details Static")
        assert screen.highlighted is None
        await pilot.press("escape")
        assert screen.focused is table(screen)
        await pilot.press("escape")
        assert app.result is None

    use(body)


def test_choose_with_options() -> None:
    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await until(pilot, lambda: "314.0 MB, fits" in text(screen, "#takes"))
        await pilot.press("k")
        assert "225.0 MB, fits" in text(screen, "#takes")
        await pilot.press("c", *"9000")
        await until(pilot, lambda: "from 256 to 8192" in text(screen, "#takes"))
        await pilot.press("enter", "enter")  # out of the field, then on the model: not with that
        assert app.result == "open"
        await pilot.press(*["backspace"] * 4, *"2000", "enter")
        await until(pilot, lambda: "at most 150.0 MB" in text(screen, "#takes"))
        await pilot.press("enter")
        assert app.result == Choice("smollm2:135m", LoadOptions(2000, "q8_0"))

    use(body, (60, 20))


def test_choose_by_mouse() -> None:
    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.click(LoadOptionsBar, offset=(3, 0))
        assert screen.query_one(LoadOptionsBar).options.kv_type == "q8_0"
        await pilot.click(ModelTable, offset=(5, 2))  # moves the cursor
        assert app.result == "open"
        assert screen.highlighted is not None
        assert screen.highlighted.name == "old:1b"
        await pilot.click(ModelTable, offset=(5, 2))
        assert app.result == Choice("old:1b", LoadOptions(0, "q8_0"))

    use(body, (120, 40))


def test_a_pull_goes_on_while_the_screen_is_gone() -> None:
    bring = FakeBring()

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        assert app.pulls is not None
        await pilot.press("down", "down", "p", "y")
        await until(pilot, lambda: "pulling 25%" in cells(screen))
        row = screen.query_one(PullRow)
        drawn = str(row.query_one(".whole").render())
        assert all(part in drawn for part in ("25%", "10 B/s", "0:15 left"))
        below = str(row.query_one(".below").render())
        assert below == "[##########] 100% a.gguf\n[#---------]  10% b.gguf"
        await pilot.press("p")
        await until(pilot, lambda: "being pulled already" in notes_of(app))
        await pilot.press("escape")
        assert app.result is None
        assert app.pulls.line() == "pulling qwen3:0.6b 25% 0:15 left"
        again = app.open()
        await until(pilot, lambda: again.is_mounted and len(again.query(PullRow)) == 1)
        bring.go.set()
        await until(pilot, lambda: "qwen3:0.6b-q4_k_m is here" in notes_of(app))
        assert app.pulls.line() == ""
        assert bring.n == 1
        dismiss = again.query_one(PullRow).query_one(".second", Button)
        await pilot.click(dismiss)
        await until(pilot, lambda: not again.query(PullRow))

    use(body, bring=bring)


def test_the_line_of_a_pull_at_every_width() -> None:
    pull = Pull("qwen3:0.6b", stage="downloading", n_bytes=50, size=200, bytes_per_s=10.0,
                eta_s=15.0)  # fmt: skip
    lengths = []
    for width in range(120, 15, -1):
        text = whole_text(pull, width)
        assert len(text) <= width
        assert text.startswith("qwen3:0.6b")
        assert width < 20 or "25%" in text
        assert width < 30 or "0:15 left" in text
        lengths.append(len(text))
    assert lengths == sorted(lengths, reverse=True)
    assert whole_text(pull, 120).startswith("qwen3:0.6b downloading [#####----")


def test_a_line_for_each_file() -> None:
    files = tuple(FilePart(f"{n}.gguf", min(1, max(0, 4 - n)) * 10, 10) for n in range(1, 13))
    files = (*files[:3], FilePart("4.gguf", 5, 10), *files[4:])
    lines = below_text(Pull("x", files=files), 60).split("\n")
    assert lines[:3] == [
        "3 of 12 files are here", "[#####-----]  50% 4.gguf", "[----------]   0% 5.gguf",
    ]  # fmt: skip
    assert len(lines) == 5
    unknown = (FilePart("a\x1b.gguf", 5_000_000, None), FilePart("b" * 80, 0, None))
    lines = below_text(Pull("x", files=unknown), 60).split("\n")
    assert lines[0] == "5.0 MB            a\\x1b.gguf" and len(lines[1]) == 60


def test_files_of_a_set() -> None:
    of_set = FileSet([("a", 10), ("b", None), ("c", 30)])

    def at(index: int, name: str, n_bytes: int, size: int | None, all_bytes: int) -> list[int]:
        found = Progress(name, index, 3, n_bytes, size, all_bytes, None, 0.0, None, "downloading")
        return [part.n_bytes for part in of_set.at(found)]

    assert at(2, "b", 0, 20, 10) == [10, 0, 0]  # the first was here before
    assert at(2, "b", 20, 20, 30) == [10, 20, 0]
    assert at(3, "c", 5, 30, 35) == [10, 20, 5]
    assert (
        FileSet([("a", 10)]).at(Progress("a", 1, 1, 5, 10, 5, 10, 0.0, None, "downloading")) == ()
    )


def test_a_failed_pull_says_why_and_goes_on() -> None:
    bring = FakeBring()
    bring.fails = DownloadError("cannot fetch [b]x\x1b: refused", f"Check the network. {KEPT}")
    bring.go.set()

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("down", "down", "p", "y")
        await until(pilot, lambda: "refused" in notes_of(app))
        assert "[b]x\\x1b" in notes_of(app)
        row = screen.query_one(PullRow)
        why = str(row.query_one(".below").render())
        assert "cannot fetch [b]x\\x1b: refused. Check the network." in why
        assert "pull it again to go on from there" in why
        assert "same command" not in why
        bring.fails = None
        await pilot.click(row.query_one(".first", Button))
        await until(pilot, lambda: bring.n == 2 and "is here" in notes_of(app))

    use(body, bring=bring)


def test_a_pull_is_stopped() -> None:
    bring = FakeBring()

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("x")
        await until(pilot, lambda: "No pull is running" in notes_of(app))
        await pilot.press("down", "down", "p", "y")
        await until(pilot, bring.begun.is_set)
        await pilot.press("x")
        await until(pilot, lambda: "was stopped" in notes_of(app))
        assert app.pulls is not None
        assert app.pulls.all()[0].state == "stopped"
        assert not bring.go.is_set()

    use(body, bring=bring)


def test_enter_on_a_model_that_is_not_here_asks() -> None:
    bring = FakeBring()
    bring.go.set()

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("n")
        assert app.screen is screen
        assert bring.n == 0
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.click("#yes")
        await until(pilot, lambda: bring.n == 1)

    use(body, bring=bring)


def test_nothing_is_pulled_unasked() -> None:
    bring = FakeBring()

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("down", "down", "p")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen)
        assert bring.n == 0 and app.pulls is not None and not app.pulls.all()

    use(body, bring=bring)


def test_a_model_that_was_opened_by_its_path_has_a_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"x" * 1000)

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        shown = [str(cell) for cell in table(screen).get_row_at(0)]
        assert shown[:2] == ["mine.gguf", "in use"] and shown[4] == "1.0 kB"
        assert screen.highlighted is not None and screen.highlighted.name == str(path)
        await pilot.press("d")
        await until(pilot, lambda: "is in use" in notes_of(app))

    use(body, current=str(path))


def test_a_name_that_no_row_has_is_pulled() -> None:
    bring = FakeBring()
    bring.go.set()

    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("slash", *"u/r")
        await until(pilot, lambda: table(screen).row_count == 0)
        assert "u/r as a name" in text(screen, "#details Static")
        await pilot.press("enter", "p", "y")
        await until(pilot, lambda: "u/r-q4_k_m is here" in notes_of(app))

    use(body, bring=bring)


def test_delete() -> None:
    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        await pilot.press("d")
        await until(pilot, lambda: "in use" in notes_of(app))
        await pilot.press("down", "d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("enter")  # the focus is on the cautious answer
        assert app.screen is screen
        assert app.library.deleted == []
        await pilot.press("delete")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "old:1b" not in cells(screen))
        assert app.library.deleted == ["old:1b"]
        assert "old:1b deleted. Its file stays where it is: /x" in notes_of(app)
        await pilot.press("down", "d")
        await until(pilot, lambda: "cannot be deleted here" in notes_of(app))

    use(body, current="smollm2:135m")


def test_errors_of_the_library_are_told() -> None:
    async def body(pilot: Pilot[Any], app: Host, screen: ModelsScreen) -> None:
        app.library.error = LocalLLMError("cannot read [the] folder\x9b", "Look at it.")
        await pilot.press("r")
        await until(pilot, lambda: "cannot read [the] folder\\x9b. Look at it." in notes_of(app))
        await pilot.press("escape")
        assert app.result is None

    use(body)


def test_nothing_blocks_while_the_store_is_read() -> None:
    library = FakeLibrary()
    library.ready.clear()
    app = Host(library, None)

    async def run() -> None:
        async with app.run_test(size=(60, 20)) as pilot:
            screen = app.open()
            await until(pilot, lambda: screen.is_mounted)
            await pilot.press("slash", *"qwen")
            assert screen.query_one("#filter", Input).value == "qwen"
            library.ready.set()
            await until(pilot, lambda: table(screen).row_count == 2)

    asyncio.run(run())
