"""The line of keys: what it shows where, and that a click presses a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from tui.driving import Driven, drive

from localllm.tui.screens.help import HelpScreen
from localllm.tui.widgets.key_line import KeyLine


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, " f1 Help  ^n New chat  ^o Models  ^b Chats  ^f Search  ^q Quit     ▏ ^p palette "),
        (70, "f1 Help ^n New chat ^o Models ^b Chats ^f Search ^q Quit ▏ ^p palette "),
        (60, "f1 Help ^n New chat ^o Models ^b Chats ^f Search ^q Quit "),
    ],
)
def test_where_there_is_less_room(tmp_path: Path, width: int, line: str) -> None:
    async def body(d: Driven) -> None:
        assert d.text.splitlines()[-1].rstrip() == line.rstrip()

    drive(body, tmp_path, size=(width, 20))


def test_a_click_presses_a_key(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.pilot.click(KeyLine, offset=(6, 0))
        await d.until(lambda: isinstance(d.app.screen, HelpScreen))

    drive(body, tmp_path)


def test_other_keys_where_the_focus_goes_without_another_layout(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question")
        line = d.chat.query_one(KeyLine)
        laid_out: list[object] = []
        refresh = line.refresh

        def counted(*args: object, layout: bool = False, **more: object) -> KeyLine:
            if layout:
                laid_out.append(args)
            return refresh(*args, layout=layout, **more)  # type: ignore[arg-type]

        line.refresh = counted  # type: ignore[method-assign, assignment]
        await d.press("ctrl+up")
        await d.until(lambda: "Regenerate" in d.text.splitlines()[-1])
        await d.press("escape")
        await d.until(lambda: "New chat" in d.text.splitlines()[-1])
        assert not laid_out

    drive(body, tmp_path)
