"""The screens of models and of comparisons over the real store and the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from tui.keeping import empty_conversation
from tui.waiting import notes_of, screen_text, until

from localllm import paths
from localllm.cli.chat_opening import LocalOpener
from localllm.cli.loading_options import Opening
from localllm.params import GenerateParams
from localllm.tui import library
from localllm.tui.compared import Compared
from localllm.tui.library import LocalLibrary
from localllm.tui.live import History, Sampler
from localllm.tui.opening import LoadOptions
from localllm.tui.screens.compare import CompareScreen
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.models import Choice, ModelsScreen, ModelTable


@pytest.fixture
def home(tmp_path: Path, tiny: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two tiny models, on a machine that need not be measured."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(library, "read_speed", lambda places: 20.0)
    (tmp_path / "models").mkdir()
    for name in ("one", "two"):
        (tmp_path / "models" / f"{name}@1k.gguf").write_bytes(tiny("llama", "Q4_0").read_bytes())
    return tmp_path


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
def test_models(home: Path, size: tuple[int, int]) -> None:
    async def run() -> None:
        app: App[None] = App()
        ended: list[Choice | None] = []
        async with app.run_test(size=size) as pilot:
            screen = ModelsScreen(LocalLibrary(paths.current()), None, current="one:1k")
            await app.push_screen(screen, ended.append)
            table = screen.query_one(ModelTable)
            await until(pilot, lambda: table.row_count > 2 and "best fit" in _cells(table))
            assert [str(cell) for cell in table.get_row_at(0)][:3] == ["one:1k", "in use", "fits"]
            await until(pilot, lambda: "architecture: llama" in _details(screen))
            await until(pilot, lambda: "fits" in str(screen.query_one("#takes").render()))
            await pilot.press("down", "k", "enter")
            assert ended == [Choice("two:1k", LoadOptions(0, "q8_0"))]

    asyncio.run(run())


def test_delete(home: Path) -> None:
    async def run() -> None:
        app: App[None] = App()
        async with app.run_test(size=(60, 20)) as pilot:
            screen = ModelsScreen(LocalLibrary(paths.current()), None)
            await app.push_screen(screen)
            table = screen.query_one(ModelTable)
            await until(pilot, lambda: table.row_count > 2)
            await pilot.press("down", "d")
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            assert "Delete two:1k" in screen_text(app)
            await pilot.press("y")
            await until(pilot, lambda: "two:1k deleted" in notes_of(app))
            await until(pilot, lambda: "two:1k" not in _cells(table))

    asyncio.run(run())
    assert [path.name for path in (home / "models").glob("*.gguf")] == ["one@1k.gguf"]


def test_compare(home: Path) -> None:
    def prepare(question: str, session: Any, described: Any) -> Any:
        params = GenerateParams(temperature=0, max_tokens=8, ignore_eos=True)
        return [{"role": "user", "content": question.content}], params, None

    async def run(kept: Compared) -> None:
        app: App[None] = App()
        opener, ended, history = LocalOpener(None, Opening()), list[str | None](), History()
        async with app.run_test(size=(80, 24)) as pilot:
            screen = CompareScreen(
                opener, prepare, kept, question="Hello", names=("one:1k", "two:1k")
            )
            await app.push_screen(screen, ended.append)
            await until(pilot, lambda: all(view.name_chosen for view in screen.views))
            await pilot.press("enter")
            await until(pilot, lambda: "F2 or F3" in str(screen.query_one("#said").render()))
            assert screen.comparison is not None
            assert screen.comparison.together
            assert all(view.figures.startswith("done · 8 tokens") for view in screen.views)
            left, right = (side.answering for side in screen.comparison.sides)
            assert left is not None
            assert right is not None
            assert left.text == right.text  # one model under two names, greedily
            assert Sampler().take(left.session).context_size > 0
            history.add_answer(left.session, "one:1k", "length")
            assert history.answers[0].generated_tokens == 8
            await pilot.press("f2")
        opener.close()
        assert ended == ["one:1k"]
        last = kept._store.path(kept._conversation)[-1]
        assert (last.content, last.finish_reason) == (left.text, "length")

    with empty_conversation() as kept:
        asyncio.run(run(kept))


def _cells(table: ModelTable) -> list[str]:
    return [str(cell) for i in range(table.row_count) for cell in table.get_row_at(i)]


def _details(screen: ModelsScreen) -> str:
    return str(screen.query_one("#details Static").render())
