"""Every action of a screen is in the command palette and on its page of keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.screen import Screen
from tui.fakes import FakeOpener
from tui.keeping import empty_conversation

from localllm.tui.compared import Compared
from localllm.tui.library import ServedLibrary
from localllm.tui.live import History
from localllm.tui.presets import Presets, Wishes
from localllm.tui.screens.compare import CompareScreen
from localllm.tui.screens.figures import FiguresScreen
from localllm.tui.screens.models import ModelsScreen
from localllm.tui.screens.own_keys import KeysScreen, OwnKeys, own_keys
from localllm.tui.screens.parameters import ParametersScreen


def screens(folder: Path, kept: Compared) -> dict[str, Screen[Any]]:
    opener = FakeOpener()
    return {
        "models": ModelsScreen(ServedLibrary(opener), None),
        "figures": FiguresScreen(History()),
        "parameters": ParametersScreen(Wishes(), Presets(folder)),
        "compare": CompareScreen(opener, lambda *asked: ([], None, None), kept),  # type: ignore[arg-type,return-value]
    }


@pytest.mark.parametrize("name", ["models", "figures", "parameters", "compare"])
def test_keys_and_palette(tmp_path: Path, name: str) -> None:
    async def run(kept: Compared) -> None:
        app: App[None] = App()
        async with app.run_test(size=(60, 20)) as pilot:
            screen = screens(tmp_path, kept)[name]
            await app.push_screen(screen)
            await pilot.pause()
            rows = {what: keys for keys, what, _ in own_keys(screen)}
            bindings = [each for row in screen._bindings.key_to_bindings.values() for each in row]
            assert {each.description for each in bindings if each.show} <= set(rows)
            found = {hit.text or str(hit.display) async for hit in OwnKeys(screen).discover()}
            assert set(rows) <= found
            assert rows["Keys"] == "F1"
            await pilot.press("f1")
            shown = app.screen
            assert isinstance(shown, KeysScreen)
            for what in rows:
                assert what in dict(shown.sections[0][1]).values()
            await pilot.press("f1")
            assert app.screen is screen

    with empty_conversation() as kept:
        asyncio.run(run(kept))


def test_an_action_of_the_palette_runs(tmp_path: Path) -> None:
    async def run() -> None:
        app: App[None] = App()
        async with app.run_test(size=(60, 20)) as pilot:
            screen = ModelsScreen(ServedLibrary(FakeOpener()), None)
            await app.push_screen(screen)
            await pilot.pause()
            hits = [hit async for hit in OwnKeys(screen).search("Details")]
            assert len(hits) == 1
            await hits[0].command()
            assert screen.query_one("#details").has_class("-hidden")

    asyncio.run(run())
