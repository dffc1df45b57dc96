"""Instructions, reasoning, parameters and presets, by keyboard and by mouse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input, Select, TextArea
from tui.waiting import notes_of, until

from localllm.params import PARAMETERS
from localllm.tui.presets import Presets, Wishes
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.parameters import ParametersScreen
from localllm.tui.widgets.parameter_field import ParameterField

NOTHING = Wishes()
Body = Callable[[Pilot[Any], ParametersScreen, list[Wishes | None]], Coroutine[Any, Any, None]]


def use(
    folder: Path, body: Body, wishes: Wishes = NOTHING, size: tuple[int, int] = (80, 24),
    **more: Any,
) -> None:  # fmt: skip
    async def run() -> None:
        app: App[None] = App()
        ended: list[Wishes | None] = []
        async with app.run_test(size=size) as pilot:
            screen = ParametersScreen(wishes, Presets(folder), **more)
            await app.push_screen(screen, ended.append)
            await pilot.pause()
            await body(pilot, screen, ended)

    asyncio.run(run())


def field(screen: ParametersScreen, name: str) -> ParameterField:
    return next(each for each in screen.query(ParameterField) if each.row.name == name)


def told(screen: ParametersScreen) -> str:
    return str(screen.query_one("#told").render())


def test_every_parameter_has_a_field_from_the_table(tmp_path: Path) -> None:
    async def body(pilot: Pilot[Any], screen: ParametersScreen, ended: list[Wishes | None]) -> None:
        fields = list(screen.query(ParameterField))
        assert {each.row.name for each in fields} == set(PARAMETERS)
        assert fields[0].row.name == "temperature"
        assert fields[0].query_one(Input).placeholder == "0.25"
        assert field(screen, "seed").query_one(Input).placeholder == "a new one each time"
        assert field(screen, "top_k").query_one(Input).value == "5"
        await pilot.press("ctrl+s")
        assert ended == [Wishes("mine\x1b", {"top_k": 5}, "low")]  # unchanged, to the byte

    use(tmp_path, body, Wishes("mine\x1b", {"top_k": 5}, "low"), usual={"temperature": 0.25})


def test_a_field_is_checked_as_it_is_typed(tmp_path: Path) -> None:
    async def body(pilot: Pilot[Any], screen: ParametersScreen, ended: list[Wishes | None]) -> None:
        temperature = field(screen, "temperature")
        temperature.query_one(Input).focus()
        await pilot.pause()
        assert "It may be from 0 to 2. Usually 0.8." in told(screen)
        await pilot.press(*"3")
        await until(pilot, lambda: "Wrong: temperature: 3.0 is out of range" in told(screen))
        await pilot.press("down", "ctrl+s")
        assert ended == []
        assert temperature.query_one(Input).has_focus  # where it is wrong
        await pilot.press("f5")
        await until(pilot, lambda: temperature.value == (False, None))
        await pilot.press(*"1.5")
        await pilot.press("down")
        assert field(screen, "seed").query_one(Input).has_focus
        await pilot.press("up")
        assert temperature.query_one(Input).has_focus
        await until(pilot, lambda: temperature.value == (True, 1.5))
        await pilot.press("ctrl+s")
        assert ended == [Wishes(None, {"temperature": 1.5}, None)]

    use(tmp_path, body, size=(60, 20))


def test_mouse(tmp_path: Path) -> None:
    async def body(pilot: Pilot[Any], screen: ParametersScreen, ended: list[Wishes | None]) -> None:
        top_k = field(screen, "top_k")
        await pilot.click(top_k.query_one(Button))
        await until(pilot, lambda: top_k.value == (False, None))
        await pilot.click("#own")
        await until(pilot, lambda: "the model's own" in str(screen.query_one("#origin").render()))
        assert screen.query_one("#system", TextArea).text == "be kind"
        screen.query_one("#think", Select).value = "off"
        await pilot.press("escape")
        assert ended == [None]

    use(tmp_path, body, Wishes("mine", {"top_k": 5}), own_system="be kind")


def test_instructions(tmp_path: Path) -> None:
    async def body(pilot: Pilot[Any], screen: ParametersScreen, ended: list[Wishes | None]) -> None:
        assert "the model's own" in str(screen.query_one("#origin").render())
        await pilot.press("X")
        await until(pilot, lambda: "yours" in str(screen.query_one("#origin").render()))
        found = screen.wishes()
        assert found is not None
        assert found.system == "Xbe kind"
        await pilot.press("f6")  # all is as it came
        await until(pilot, lambda: screen.wishes() == Wishes())
        screen.query_one("#think", Select).value = "off"
        await pilot.pause()
        await pilot.press("ctrl+s")
        assert ended == [Wishes(None, {}, False)]

    use(tmp_path, body, own_system="be kind")


def test_presets(tmp_path: Path) -> None:
    async def body(pilot: Pilot[Any], screen: ParametersScreen, ended: list[Wishes | None]) -> None:
        await pilot.press("f7")
        await until(pilot, lambda: "Type a name" in told(screen))
        await pilot.press(*"[calm]", "enter")
        await until(pilot, lambda: "[calm] is saved" in told(screen))
        await pilot.press("f6")
        await until(pilot, lambda: screen.wishes() == Wishes())
        choices = screen.query_one("#presets", Select)
        choices.clear()
        await pilot.pause()
        choices.value = "[calm]"
        await until(pilot, lambda: screen.wishes() == Wishes("mine", {"top_k": 5}, "low"))
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "deleted" in told(screen))
        assert Presets(tmp_path).all() == {}

    use(tmp_path, body, Wishes("mine", {"top_k": 5}, "low"))


def test_a_damaged_file_of_presets_is_told(tmp_path: Path) -> None:
    (tmp_path / "presets.json").write_text("{")

    async def body(pilot: Pilot[Any], screen: ParametersScreen, ended: list[Wishes | None]) -> None:
        await until(pilot, lambda: "are damaged" in notes_of(pilot.app))
        await pilot.press("ctrl+s")
        assert ended == [Wishes()]

    use(tmp_path, body)
