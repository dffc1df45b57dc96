"""Figures that are watched: snapshots, the live bar in all widths, the screen of plots."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Sparkline
from tui.fakes import FakeSession

from localllm.params import GenerateParams
from localllm.plain_text import cells_of
from localllm.tui.live import FIGURES, History, Sampler, Snapshot, speed, summary
from localllm.tui.screens.figures import FigureRow, FiguresScreen
from localllm.tui.widgets.live_bar import LiveBar, bar, line, sentences

FULL = Snapshot(
    model="m",
    answering=True,
    tokens_per_s=41.26,
    first_token_s=0.25,
    context_used=1024,
    context_size=4096,
    cached_tokens=900,
    kv_bytes=64_000_000,
    process_bytes=512_000_000,
    machine_load=0.87,
    memory_used=0.4,
    pulls="pulling qwen3:0.6b 41%",
)


def test_a_line_at_every_width() -> None:
    """It always has room, never grows as the screen shrinks, and the speed is the last to go."""
    lengths = []
    for width in range(200, 9, -1):
        text = line(FULL, width)
        assert cells_of(text) <= width
        assert text.startswith("41.3 tok/s")
        lengths.append(len(text))
    assert lengths == sorted(lengths, reverse=True)
    whole = line(FULL, 200)
    for part in ("first token 250 ms", "[##--------] 1.0k/4.1k 25%", "cached 900",
                 "KV 16.0 MB of 64.0 MB", "memory 512.0 MB", "CPU 87%, RAM 40%",
                 "pulling qwen3:0.6b 41%"):  # fmt: skip
        assert part in whole
    narrow = line(FULL, 58)
    assert "25%" in narrow
    assert "900" in narrow


def test_a_line_of_little() -> None:
    assert line(Snapshot(), 58) == "- tok/s"
    assert line(Snapshot(answering=True, prompt_done=(32, 100)), 58) == "reading 32/100"
    assert "context 77" in line(Snapshot(context_used=77), 58)
    assert line(Snapshot(pulls="pulling \x1b[2J"), 80) == "- tok/s  pulling \\x1b[2J"
    assert bar(0.0, 4) == "[----]"
    assert bar(7.0, 4) == "[####]"
    assert "Context: 1024 of 4096 tokens" in sentences(FULL)


def test_snapshots_of_a_session() -> None:
    session = FakeSession([["a", "b", "c", "d"]])
    sampler = Sampler()
    assert sampler.take(None).context_size == 0
    before = sampler.take(session, model="m")
    assert (before.tokens_per_s, before.first_token_s, before.cached_tokens) == (None, None, None)
    given = session.chat([{"role": "user", "content": "one two"}], GenerateParams())
    next(given)
    running = sampler.take(session, model="m", answering=True)
    assert running.context_used >= 3
    assert running.prompt_done == (3, 3)
    for _ in given:
        pass
    after = sampler.take(session, model="m")
    assert after.tokens_per_s == pytest.approx(3 / 0.08)
    assert after.context_size == session.info.n_ctx
    assert after.process_bytes is not None
    assert after.process_bytes > 1_000_000
    assert after.machine_load is not None


def test_history() -> None:
    now = [0.0]
    history = History(clock=lambda: now[0])
    for _ in range(5):
        history.add(FULL)
        now[0] += 0.5
    assert len(history.samples) == 3  # one a second
    assert history.values(FIGURES[0]) == [41.26] * 3
    idle = dataclasses.replace(FULL, answering=False)
    now[0] = 10.0
    assert history.add(idle)
    assert len(history.values(FIGURES[0])) == 3  # no speed without an answer
    found = summary([3.0, 1.0, 2.0])
    assert found is not None
    assert (found.least, found.median, found.most, found.last) == (1.0, 2.0, 3.0, 2.0)
    assert summary([]) is None
    assert speed(1, 1.0) is None


class BarApp(App[None]):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.clock = clock
        self.pressed = 0

    def compose(self) -> ComposeResult:
        yield LiveBar(clock=self.clock)

    def on_live_bar_pressed(self) -> None:
        self.pressed += 1


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
def test_the_bar_draws_four_times_a_second(size: tuple[int, int]) -> None:
    now = [100.0]

    async def use() -> None:
        app = BarApp(lambda: now[0])
        async with app.run_test(size=size) as pilot:
            bar_widget = app.query_one(LiveBar)
            for i in range(100):  # within a moment
                bar_widget.show(dataclasses.replace(FULL, cached_tokens=i))
            assert bar_widget.n_draws == 1
            while bar_widget.n_draws < 2:  # the latest follows by itself
                await pilot.pause()
                await asyncio.sleep(0.01)
            assert "99" in str(bar_widget.content)
            assert cells_of(str(bar_widget.content)) <= size[0] - 2
            now[0] += 1.0
            bar_widget.show(FULL)
            assert bar_widget.n_draws == 3
            await pilot.click(LiveBar)
            assert app.pressed == 1

    asyncio.run(use())


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
def test_the_screen_of_figures(size: tuple[int, int]) -> None:
    now = [0.0]
    history = History(clock=lambda: now[0])
    session = FakeSession([["a", "b", "c"]])
    list(session.chat([{"role": "user", "content": "one"}], GenerateParams()))

    async def use() -> None:
        app: App[None] = App()
        async with app.run_test(size=size) as pilot:
            screen = FiguresScreen(history)
            await app.push_screen(screen)
            assert "nothing yet" in screen.query(FigureRow).first().text
            for tokens_per_s in (10.0, 30.0, 20.0):
                history.add(dataclasses.replace(FULL, tokens_per_s=tokens_per_s))
                now[0] += 1
            history.add_answer(session, "[b]m\x1b", "stop")
            screen.update()
            await pilot.pause()
            first = screen.query(FigureRow).first()
            wanted = ("now 20", "min 10", "med", "max 30")
            assert all(word in first.text for word in wanted)
            assert len(first.text) <= size[0] - 2
            assert first.query_one(Sparkline).data == [10.0, 30.0, 20.0]
            table = screen.query_one(DataTable)
            assert table.row_count == 1
            assert [str(cell) for cell in table.get_row_at(0)][-2:] == ["stop", "[b]m\\x1b"]
            screen.update()
            assert table.row_count == 1  # nothing new
            history.add_answer(session, "m", "length")
            screen.update()
            assert [str(cell) for cell in table.get_row_at(0)][-2:] == ["length", "m"]
            await pilot.press("escape")
            assert app.screen is not screen

    asyncio.run(use())
