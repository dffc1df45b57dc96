"""What a long conversation costs: counts, not times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen
from tui.driving import Driven, drive
from tui.fakes import FakeSession

from localllm.tui.blocks import Hanging
from localllm.tui.widgets.message import MessageView
from localllm.tui.widgets.transcript import Bar

TEXT = "A line of *text* that has to be wrapped on a narrow screen, as most lines have.\n\n- one"


def counting(patch: pytest.MonkeyPatch, owner: type[Any], name: str) -> Callable[[], int]:
    """How often a method was called since the last time."""
    calls: list[str] = []
    method = getattr(owner, name)

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        calls.append(name)
        return method(self, *args, **more)

    def taken() -> int:
        n = len(calls)
        calls.clear()
        return n

    patch.setattr(owner, name, counted)
    return taken


async def filled(d: Driven, n: int) -> None:
    """So many messages, all of them mounted."""
    assert d.chat.conversation is not None
    parent = None
    for i in range(n):
        role, text = ("assistant", TEXT) if i % 2 else ("user", f"Question {i}?")
        added = d.store.add(d.chat.conversation.id, parent, role, text, finish_reason="stop")
        parent = added.id
    await d.chat.reopen()
    while d.chat.transcript.n_mounted < n:
        d.chat.transcript.want_earlier()
        await d.pilot.pause()
    await d.pilot.pause()


def test_the_list_beside_many_messages_comes_and_goes_without_measuring_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(d: Driven) -> None:
        await filled(d, 40)
        layouts = counting(monkeypatch, Screen, "_refresh_layout")
        measures = counting(monkeypatch, Hanging, "get_height")
        for n in range(4):
            await d.press("ctrl+b")
            await d.pilot.pause()
            n_layouts, n_measures = layouts(), measures()
            if n >= 2:  # the list was composed, both widths were seen
                assert n_layouts and n_measures == 0

    drive(body, tmp_path, size=(120, 40))


def test_a_message_is_one_widget_and_its_answer(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await filled(d, 20)
        n_widgets = [len(list(view.walk_children())) for view in d.chat.transcript.views]
        assert n_widgets == [0, 2] * 10  # no widget beside a question; the answer and its text

    drive(body, tmp_path)


def test_the_scroll_bar_looks_like_the_one_of_textual(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await filled(d, 12)
        transcript = d.chat.transcript
        bar = transcript.vertical_scrollbar
        assert isinstance(bar, Bar) and bar.display
        for y in range(transcript.max_scroll_y + 1):
            transcript.scroll_to(y=y, animate=False, force=True)
            await d.pilot.pause()
            crop = bar.size.region
            seen = bar.render_lines(crop)
            bar._drawn = (None, [])
            bar.refresh()
            assert bar.render_lines(crop) == seen, y

    drive(body, tmp_path)


def test_an_answer_is_followed_to_its_end(tmp_path: Path) -> None:
    session = FakeSession([[f"line {n}\n\n" for n in range(60)]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        transcript = d.chat.transcript
        await d.until(lambda: "line 59" in d.text)
        assert transcript.scroll_y == transcript.max_scroll_y > 0
        assert sum(view.size.height for view in transcript.query(MessageView)) > 100

    drive(body, tmp_path, session=session)
