"""Whatever a model, a file, a server or an error is called, the screens stay whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stand_ins.nasty import ALL, BAD
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable, Input
from tui.fakes import FakeOpener, FakeSession
from tui.keeping import empty_conversation
from tui.waiting import notes_of, screen_text, until

from localllm.errors import DownloadError, LocalLLMError
from localllm.params import GenerateParams
from localllm.plain_text import cells_of
from localllm.tui.dialogue import figures_of
from localllm.tui.library import AVAILABLE, READY, ModelRow
from localllm.tui.live import History, Sampler
from localllm.tui.outlook import FITS, Outlook
from localllm.tui.presets import Presets, Wishes
from localllm.tui.pulls import FilePart, Pull, Pulls, Tell
from localllm.tui.screens.compare import CompareScreen
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.figures import FiguresScreen
from localllm.tui.screens.models import ModelsScreen
from localllm.tui.screens.parameters import ParametersScreen
from localllm.tui.widgets.live_bar import LiveBar

LONG = ALL + " " + "x" * 5000
SIZE = (60, 20)


class NastyLibrary:
    is_local = True

    def rows(self) -> tuple[list[ModelRow], list[str]]:
        here = ModelRow(ALL, READY, 10, ALL, ALL, ALL, ALL, ALL, Path(f"/x/{ALL[:20]}"))
        return [here, ModelRow(LONG, AVAILABLE, about=ALL)], [LONG]

    def outlook(self, row: ModelRow) -> Outlook:
        return Outlook(FITS, LONG, 5.0, ALL, 512, 2048, quantization=ALL)

    def recommended(self) -> set[str]:
        return set()

    def details(self, row: ModelRow) -> list[tuple[str, str]]:
        return [(ALL, LONG), ("licence", ALL)]

    def deletion(self, name: str) -> tuple[str, int]:
        return ALL, 10

    def delete(self, name: str) -> list[str]:
        raise LocalLLMError(LONG, ALL)


def nasty_pull(pull: Pull, tell: Tell) -> str:
    files = (FilePart(ALL, 1, 2), FilePart(ALL, 0, None))
    tell(Pull(pull.name, stage=ALL, n_bytes=5, size=10, files=files))
    raise DownloadError(LONG, ALL)


@pytest.mark.parametrize("value", ["x", None, True, [], {}, float("nan"), 1e308, 10**400, -1])
def test_figures_that_are_none(value: Any) -> None:
    names = ("generated_tokens", "decode_s", "first_token_s", "cached_tokens")
    assert figures_of(dict.fromkeys(names, value)) == []
    assert len(figures_of(dict.fromkeys(names, 2))) == 3


def is_whole(app: App[Any]) -> None:
    shown = screen_text(app)
    lines = shown.split("\n")
    assert len(lines) == SIZE[1], shown
    assert not BAD.search(shown.replace("\n", "")), ascii(shown)
    assert "bold" not in shown or "[bold]" in shown, "markup was read"


def run(use: Any, app: App[Any] | None = None) -> None:
    app = app or App()

    async def body() -> None:
        async with app.run_test(size=SIZE) as pilot:
            await use(pilot, app)
            is_whole(app)

    asyncio.run(body())


def test_models() -> None:
    pulls = Pulls(nasty_pull)

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        screen = ModelsScreen(NastyLibrary(), pulls, current="other")
        await app.push_screen(screen)
        await until(pilot, lambda: screen.query_one(DataTable).row_count == 2)
        await until(pilot, lambda: "licence" in str(screen.query_one("#details Static").render()))
        is_whole(app)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        is_whole(app)
        await pilot.press("y")
        await until(pilot, lambda: "xxxx" in notes_of(app))
        await pilot.press("down", "p", "y")
        await until(pilot, lambda: any(pull.is_over for pull in pulls.all()))
        await pilot.pause()
        assert not BAD.search(notes_of(app).replace("\n", ""))

    run(use)
    pulls.close()


def test_parameters_and_presets(tmp_path: Path) -> None:
    wishes = Wishes(LONG, {"stop": [LONG[:1000], "\x1b", "[b]"]}, None)

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        screen = ParametersScreen(wishes, Presets(tmp_path), own_system=ALL)
        await app.push_screen(screen)
        await pilot.pause()
        is_whole(app)
        assert screen.wishes() == wishes  # exact, however it is shown
        screen.query_one("#name", Input).value = "[red]x[/] {0} %s"
        await pilot.press("f7")
        await until(pilot, lambda: "is saved" in str(screen.query_one("#told").render()))
        screen.query_one("#name", Input).value = ALL
        await pilot.press("f7")
        await until(pilot, lambda: "cannot be the name" in notes_of(app))
        assert not BAD.search(notes_of(app))

    run(use)
    assert Presets(tmp_path).all() == {"[red]x[/] {0} %s": wishes}


@pytest.mark.parametrize("fails", [False, True])
def test_compare(fails: bool) -> None:
    steps: list[Any] = [f"# {ALL}\n\n```{ALL}\n{ALL}\n", LocalLLMError(LONG, ALL) if fails else ALL]
    models = FakeOpener({ALL: FakeSession([steps]), "b": FakeSession([["fine"]])})

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        screen = CompareScreen(
            models,
            lambda *asked: ([{"role": "user", "content": "?"}], GenerateParams(), None),
            kept,
            question=ALL,
            names=(ALL, "b"),
        )
        await app.push_screen(screen)
        await until(pilot, lambda: screen.views[1].name_chosen == "b")
        await pilot.press("enter")
        await until(pilot, lambda: "F2 or F3" in str(screen.query_one("#said").render()))

    with empty_conversation() as kept:
        run(use)


def test_figures_and_the_live_bar() -> None:
    session, history = FakeSession(), History()
    list(session.chat([{"role": "user", "content": "?"}], GenerateParams()))
    history.add(Sampler().take(session, model=ALL, pulls=LONG))
    history.add_answer(session, LONG, ALL)

    class Bar(App[None]):
        def compose(self) -> Any:
            yield LiveBar()

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        app.query_one(LiveBar).show(history.samples[-1])
        await pilot.pause()
        is_whole(app)
        await app.push_screen(FiguresScreen(history))
        await pilot.pause()

    run(use, Bar())


def test_markup_that_is_not_ended() -> None:
    """The usual value of a parameter comes from a model's file."""

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        usual = {"stop": ("[b", "[/", "\x1b[2J"), "dry_sequence_breakers": ("[b",)}
        screen = ParametersScreen(
            Wishes("[b"), Presets(Path("/none")), own_system="[b", usual=usual
        )  # fmt: skip
        await app.push_screen(screen)
        await pilot.press("tab", "tab", "tab", "f5")
        is_whole(app)

    run(use)


@pytest.mark.parametrize("text", ["x" * 1_000_000, "[b\n" * 10_000], ids=["one line", "many lines"])
def test_much_text_leaves_the_screen_intact(text: str) -> None:
    class Much(NastyLibrary):
        def details(self, row: ModelRow) -> list[tuple[str, str]]:
            return [("licence", text)]

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        screen = ModelsScreen(Much(), None)
        await app.push_screen(screen)
        await until(pilot, lambda: "licence" in str(screen.query_one("#details Static").render()))
        await pilot.press("down", "up", "tab", "pagedown")

    run(use)


@pytest.mark.parametrize("name", ["models", "parameters", "compare", "figures"])
def test_the_screen_is_resized(tmp_path: Path, name: str) -> None:
    history = History()
    history.add(Sampler().take(None))
    screens: dict[str, Any] = {
        "models": lambda: ModelsScreen(NastyLibrary(), None),
        "parameters": lambda: ParametersScreen(Wishes(), Presets(tmp_path)),
        "compare": lambda: CompareScreen(
            FakeOpener(), lambda *asked: ([], GenerateParams(), None), kept
        ),
        "figures": lambda: FiguresScreen(history),
    }

    async def use(pilot: Pilot[Any], app: App[Any]) -> None:
        await app.push_screen(screens[name]())
        for width, height in ((120, 40), (40, 10), SIZE):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            lines = screen_text(app).split("\n")
            assert len(lines) == height
            assert all(cells_of(line) == width for line in lines)

    with empty_conversation() as kept:
        run(use)
