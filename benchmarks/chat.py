"""The terminal chat: how soon it is there, and what it costs to draw. No model: answers are given.

`python -m benchmarks chat` prints all rows. Starts are of whole processes in a terminal of 120 x
40; all other times are those that the thread which draws was computing.
"""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from textual.app import App
from textual.events import Resize
from textual.geometry import Size
from textual.pilot import Pilot

from benchmarks.report import Key, Row
from localllm.errors import ArgumentError
from localllm.tui.app import ChatApp
from localllm.tui.conversations.store import Conversations
from localllm.tui.screens.chat import ChatScreen
from localllm.tui.widgets.message import MessageView

SIZE = (120, 40)
N_LONG, N_SHOWN = 500, 200  # messages
N_TOKENS, TOKENS_PER_S, CHARS = 4000, 60, 4
DRAWS_PER_S = 10
PATIENCE_S = 20.0
_BARE = (
    "from textual.app import App\nfrom textual.widgets import Static\n"
    "class Bare(App):\n    def compose(self):\n        yield Static('the-first-paint')\n"
    "Bare().run()"
)
_LOOK_S = 0.02  # longer than the screen waits before it draws
_WORDS = "some words of an answer that goes on for a while "


def keys() -> list[Key]:
    """All rows."""
    return [
        ("first paint", "chat"),
        ("open", f"{N_LONG} messages"),
        ("answer at 60 tok/s", "share of a core"),
        ("last 500 tokens of 4,000", "to the first 500"),
        ("list of chats shown", f"{N_SHOWN} messages"),
        ("resize", f"{N_SHOWN} messages"),
    ]


def seconds_to_paint(command: list[str], mark: bytes) -> float:
    """From the start of a process to the moment in which the terminal has the mark. Raises
    RuntimeError with what came instead."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "LOCALLLM_HOME": home, "TERM": "xterm-256color"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
        begin = time.perf_counter()
        pid, terminal = pty.fork()
        if pid == 0:
            import fcntl
            import termios

            size = struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execve(command[0], command, environment)
        try:
            seen = b""
            while time.perf_counter() - begin < PATIENCE_S:
                if not select.select([terminal], [], [], 1.0)[0]:
                    continue
                try:
                    seen += os.read(terminal, 1 << 16)
                except OSError:  # it has ended
                    break
                if mark in seen:
                    return time.perf_counter() - begin
            raise RuntimeError(f"nothing was painted: {seen[-200:]!r}")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)


def first_paint(n: int = 7) -> Row:
    """The median of so many starts; the roof is an application of Textual that shows a word."""
    chat = [sys.executable, "-m", "localllm", "chat", "--url", "http://127.0.0.1:9/v1"]
    bare = [sys.executable, "-c", _BARE]
    starts = ((chat, b"nything. Enter sends"), (bare, b"the-first-paint"))
    for command, mark in starts:
        seconds_to_paint(command, mark)  # fills the file cache
    times = [[seconds_to_paint(command, mark) for command, mark in starts] for _ in range(n)]
    ours, roof = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    return Row(
        "first paint", "chat", "ms", ours,
        roof="ms of bare Textual", roof_value=roof, share=ours / roof,
    )  # fmt: skip


class _NoModels:
    """An opener without models: nothing but the screen is measured."""

    is_local = False

    def default(self) -> str | None:
        raise ArgumentError("no model is needed")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _run(body: Callable[[ChatApp, Pilot[None], Conversations], Awaitable[None]]) -> None:
    async def run(folder: Path) -> None:
        store = Conversations(folder / "conversations.db")
        opener: Any = _NoModels()
        app = ChatApp(opener, store, config=folder / "config")
        try:
            async with app.run_test(size=SIZE) as pilot:
                while not (isinstance(app.screen, ChatScreen) and app.screen.conversation):
                    await pilot.pause(0.05)
                await pilot.pause(1.0)
                await body(app, pilot, store)
        finally:
            store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


def _filled(store: Conversations, n: int) -> int:
    """A conversation with so many messages, in the file."""
    made = store.create(title="long")
    parent = None
    for i in range(n):
        text = f"Answer **{i}**:\n\n{_WORDS * 6}\n\n- one\n- two" if i % 2 else f"Question {i}?"
        role = "assistant" if i % 2 else "user"
        parent = store.add(made.id, parent, role, text, finish_reason="stop").id
    store.flush()
    return made.id


async def _settled(app: App[None]) -> None:
    """Waits until nothing is left to draw. Not as Pilot does, which sends a message to each widget
    and so costs more the more there are."""
    loop: Any = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_LOOK_S)
        screen = app.screen
        waits = screen._layout_required or screen._scroll_required or screen._dirty_widgets
        if not (waits or screen._callbacks or loop._ready):
            return


async def _cost(app: App[None], act: Awaitable[object]) -> float:
    """Computing milliseconds of this thread until nothing is left to draw."""
    begin = time.thread_time()
    await act
    await _settled(app)
    return (time.thread_time() - begin) * 1e3


async def _resized(app: App[None], width: int) -> None:
    assert app._driver is not None
    size = Size(width, SIZE[1])
    app._driver._size = size
    app.post_message(Resize(size, size))


def opening() -> Iterator[Row]:
    """A long conversation is shown; then, with many messages mounted, the list beside them comes
    and goes, and the terminal gets another width."""
    found: dict[str, float] = {}

    async def body(app: ChatApp, pilot: Pilot[None], store: Conversations) -> None:
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        long = _filled(store, N_LONG)
        found["open"] = await _cost(app, chat.show_conversation(long))
        while chat.transcript.n_mounted < N_SHOWN:
            chat.transcript.want_earlier()
            await pilot.pause(0.05)
        await pilot.pause(1.0)
        toggles = [await _cost(app, chat.run_action("sidebar")) for _ in range(5)]
        found["toggle"] = statistics.median(toggles[1:])
        widths = (110, 118, 112, 120)
        sizes = [await _cost(app, _resized(app, width)) for width in widths]
        found["resize"] = statistics.median(sizes)

    _run(body)
    yield Row("open", f"{N_LONG} messages", "ms", found["open"])
    yield Row("list of chats shown", f"{N_SHOWN} messages", "ms", found["toggle"])
    yield Row("resize", f"{N_SHOWN} messages", "ms", found["resize"])


def answering() -> Iterator[Row]:
    """An answer of 4,000 tokens in pieces as they come at 60 tokens a second, each drawn, which is
    what `Talk` does at most ten times a second; the costs are those of the drawing thread."""
    costs: list[float] = []

    async def body(app: ChatApp, pilot: Pilot[None], store: Conversations) -> None:
        chat = app.screen
        assert isinstance(chat, ChatScreen) and chat.conversation is not None
        message = store.add(chat.conversation.id, None, "assistant", finish_reason=None)
        view = MessageView(message, growing=True)
        await chat.transcript.add(view)
        text = _answer(N_TOKENS * CHARS)
        step = TOKENS_PER_S * CHARS // DRAWS_PER_S
        for at in range(0, len(text), step):
            costs.append(await _cost(app, view.add(text[at : at + step], "")))

    _run(body)
    n = 500 * DRAWS_PER_S // TOKENS_PER_S
    seconds = N_TOKENS / TOKENS_PER_S
    yield Row("answer at 60 tok/s", "share of a core", "%", sum(costs) / 10 / seconds)
    ratio = sum(costs[-n:]) / sum(costs[:n])
    yield Row("last 500 tokens of 4,000", "to the first 500", "x", ratio)


def _answer(n: int) -> str:
    """Paragraphs, lists and code, the same mixture from the beginning to the end."""
    paragraph = _WORDS * 6 + "\n\n" + f"- {_WORDS}\n" * 6 + "\n"
    code = "```python\n" + "total = call(one, two)\n" * 10 + "```\n\n"
    return ((paragraph + code) * (n // len(paragraph) + 1))[:n]


def measure(missing: Collection[Key] | None = None) -> Iterator[Row]:
    """Yields the rows of `keys`, of those that are missing if these are given."""
    wanted = set(keys() if missing is None else missing)
    if keys()[0] in wanted:
        yield first_paint()
    for rows in (opening, answering):
        yield from (row for row in rows() if (row.test, row.subject) in wanted)
