"""The line of keys: what it shows where, and that a click presses a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from tui.driving import Driven, drive

from localllm.plain_text import cells_of
from localllm.tui.screens.help import HelpScreen
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.message import MessageView


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


ON_A_MESSAGE = (
    "e Edit", "r Regenerate", "c Copy", "f1 Help", "^n New chat", "^o Models", "^b Chats",
    "^f Search", "^q Quit",
)  # fmt: skip


def test_keys_are_whole_and_the_page_of_them_is_always_there(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("q")
        await d.press("ctrl+up")
        await d.until(lambda: isinstance(d.app.focused, MessageView))
        n_shown = 0
        for width in (*range(16, 40), 50, 60, 70, 80):
            await d.pilot.resize_terminal(width, 20)
            await d.until(lambda width=width: d.app.size.width == width)  # type: ignore[misc]
            line = d.app.screen.query_one(KeyLine).render().plain
            assert cells_of(line) <= width
            keys = [key for key in ON_A_MESSAGE if f"{key} " in line]
            assert line == "".join(f"{key} " for key in keys) + "…" and "f1 Help" in keys
            assert n_shown <= len(keys) < len(ON_A_MESSAGE)
            n_shown = len(keys)
        assert n_shown == len(ON_A_MESSAGE) - 1

    drive(body, tmp_path)


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
