"""A terminal of any size ends no screen, and keeps none busy: all come to rest, and are whole again
when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest
from tui.driving import Driven, drive
from tui.fakes import FakeSession
from tui.test_models_screen import FakeLibrary

SIZES = [
    (1, 1), (3, 20), (5, 20), (8, 20), (15, 20), (80, 1), (80, 3), (80, 6), (20, 5), (4, 80),
]  # fmt: skip
TEXT = "**bold** `code`\n\n```python\nx=1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> - quote\n"
KEYS = ["", "ctrl+b", "ctrl+o", "f1", "f2", "f3", "f4", "ctrl+f", "ctrl+s", "f10", "ctrl+p", "/"]


@pytest.mark.parametrize("key", KEYS)
def test_every_screen_in_every_size(tmp_path: Path, key: str) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question")
        if key:
            await d.press(key)
        screen = d.app.screen
        for width, height in SIZES:
            await d.pilot.resize_terminal(width, height)  # which waits for it to rest
            assert d.app._exception is None and d.app.screen is screen
        await d.pilot.resize_terminal(80, 24)
        assert len(d.text.splitlines()) == 24 and "localllm" in d.app.title
        if key in ("", "/"):
            assert "Ctrl+J" in d.text or key in d.text

    drive(body, tmp_path, session=FakeSession([[TEXT]]), library=FakeLibrary())
