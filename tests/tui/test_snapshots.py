"""What each screen of the chat looks like, as pictures: at two sizes, light and dark.

A change that is meant: pytest --snapshot-update tests/tui/test_snapshots.py, and look at them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea
from tui.fakes import FakeOpener, FakeSession, Thought
from tui.test_models_screen import FakeLibrary
from tui.waiting import screen_text, until

from localllm.tui.app import ChatApp
from localllm.tui.conversations.kinds import Message
from localllm.tui.conversations.store import Conversations
from localllm.tui.live import AnswerFigures, Snapshot
from localllm.tui.opening import Beginning
from localllm.tui.presets import Presets, Wishes
from localllm.tui.pulls import FilePart, Pull, Pulls, Tell
from localllm.tui.screens.chat import ChatScreen
from localllm.tui.widgets.answer import CodeBlock

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}
THEMES = ("textual-dark", "textual-light")
ANSWER = """# A heading

Some **bold** text, `code` and a [link](http://a.b).

- one
- two

```python
def f(x):
    return x + 1  # a comment
```

| name | value |
|------|-------|
| a    | 1     |
"""
ASKED = "What does it look like?"
LONG_AGO = 1.6e9  # seconds since 1970
MOMENT = Snapshot(
    model="smollm2:135m", answering=True, tokens_per_s=50.0, first_token_s=0.25, context_used=1024,
    context_size=4096, cached_tokens=900, kv_bytes=64_000_000, process_bytes=512_000_000,
    machine_load=0.87, memory_used=0.4,
)  # fmt: skip


class Still(ChatScreen):
    """Without figures of the machine."""

    def _watch(self) -> None:
        self._live.show(dataclasses.replace(MOMENT, pulls=self.app.pull_line))


class OfTwoFiles:
    """A pull that stands still in the second of its files."""

    def __call__(self, pull: Pull, tell: Tell) -> str:
        import time

        parts = [
            FilePart(f"qwen3-0.6b-0000{n}-of-00003.gguf", n_bytes, 200_000_000)
            for n, n_bytes in ((1, 200_000_000), (2, 50_000_000), (3, 0))
        ]
        moment = dataclasses.replace(
            pull, stage="downloading", n_bytes=250_000_000, size=600_000_000, bytes_per_s=3.1e6,
            eta_s=113.0, files=tuple(parts),
        )  # fmt: skip
        while True:
            tell(moment)
            time.sleep(0.01)


Step = Callable[[Pilot[Any], ChatApp], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Scene:
    """keys: what leads there from a chat in which one question was answered, and texts that are
    there before the next one is pressed. shows: texts that are there in the end. step: what is done
    before the keys."""

    keys: tuple[str | tuple[str, ...], ...] = ()
    shows: tuple[str, ...] = ()
    step: Step | None = None


async def _figures(pilot: Pilot[Any], app: ChatApp) -> None:
    history = next(each for each in app.screen_stack if isinstance(each, ChatScreen)).history
    history.answers.clear()
    for n in range(60):
        wave = 30.0 + 20.0 * (n % 12) / 11
        history.samples.append(
            dataclasses.replace(MOMENT, tokens_per_s=wave, context_used=64 * n, machine_load=n / 60)
        )
    for n, reason in enumerate(("stop", "length", "cancelled")):
        history.answers.append(
            AnswerFigures(
                f"12:00:0{n}", "smollm2:135m", 1200 + n, 1100, 256, 0.25 + n, 48.5, reason
            )
        )


async def _pull(pilot: Pilot[Any], app: ChatApp) -> None:
    assert app.pulls is not None
    app.pulls.start("qwen3:0.6b")


async def _preset(pilot: Pilot[Any], app: ChatApp) -> None:
    Presets(app.config).save("calm", Wishes("Be calm.", {"temperature": 0.2}))
    chat = next(each for each in app.screen_stack if isinstance(each, ChatScreen))
    app.store.change(chat.renew().id, system="Be brief.", params={"temperature": 0.5, "top_k": 5})


async def _typed(pilot: Pilot[Any], app: ChatApp) -> None:
    chat = app.screen
    assert isinstance(chat, ChatScreen)
    chat.composer.editor.insert("Which of you is larger?")


async def _code(pilot: Pilot[Any], app: ChatApp) -> None:
    app.screen.query_one(CodeBlock).focus()


_MODELS = ("best fit", "licence: apache-2.0", "314.0 MB, fits")  # all that threads bring
SCENES = {
    "chat": Scene(),
    "chats": Scene(("ctrl+b",), ("A talk of long ago", "Older", "> What does it")),
    "help": Scene(("f1",), ("Everywhere",)),
    "models": Scene(("ctrl+o",), _MODELS),
    "pull": Scene(
        ("ctrl+o", "down", "down"),
        ("too large", "licence: Apache", "42%", "25% qwen3"),
        _pull,
    ),
    "confirm": Scene(
        ("ctrl+o", ("best fit",), "down", ("licence: not stated", "314.0 MB, fits"), "d"),
        ("Delete old:1b (700.0 MB)?",),
    ),
    "models-keys": Scene(("ctrl+o", _MODELS, "f1"), ("Reload",)),
    "settings": Scene(("f2",), ("Be brief.", "temperature"), _preset),
    "figures": Scene(("f3",), ("now 50", "12:00:02"), _figures),
    "compare": Scene(("f4", "enter"), ("F2 or F3", "From the other"), _typed),
    "search": Scene(("ctrl+f", *"forw"), ("2 places",)),
    "export": Scene(("ctrl+s",), ("conversation-what",)),
    "import": Scene(("f10",), ("Import JSON",)),
    "save": Scene(("s",), ("Save this code to",), _code),
}


DIALOGS = ("confirm", "models-keys", "export", "import", "save")
"""Of these a small dark and a large light picture are enough."""
LOOKS = [
    pytest.param(scene, theme, size, id=f"{scene}-{theme}-{size}")
    for scene in SCENES
    for theme in THEMES
    for size in SIZES
    if scene not in DIALOGS or (theme == THEMES[0]) == (size == "80x24")
]


@pytest.mark.parametrize(("scene", "theme", "size"), LOOKS)
def test_screen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    scene: str,
    theme: str,
    size: str,
) -> None:
    monkeypatch.setattr("localllm.tui.screens.chat.ChatScreen", Still)
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    store, pulls = Conversations(tmp_path / "conversations.db"), Pulls(OfTwoFiles())
    opener = FakeOpener(
        {
            "smollm2:135m": FakeSession([[Thought("Let me see."), ANSWER]]),
            "old:1b": FakeSession([["From the other one: it looks *old*."]]),
        },
        default="smollm2:135m",
    )
    app = ChatApp(
        opener, store, Beginning(), config=tmp_path, library=FakeLibrary(), pulls=pulls
    )  # fmt: skip
    wanted = SCENES[scene]
    _remember(store)

    async def before(pilot: Pilot[None]) -> None:
        app.theme, app.animation_level = theme, "none"
        await until(pilot, lambda: app.session and isinstance(app.screen, ChatScreen))
        await _ask(pilot, app)
        if wanted.step is not None:
            await wanted.step(pilot, app)
        for key in wanted.keys:
            if isinstance(key, str):
                await pilot.press(key)
                continue
            for text in key:
                await until(pilot, lambda text=text: text in screen_text(app))
        for text in wanted.shows:
            await until(pilot, lambda text=text: text in screen_text(app))
        for field in app.screen.query("Input, TextArea"):
            assert isinstance(field, Input | TextArea)
            field.cursor_blink = False
        await pilot.pause()

    try:
        assert snap_compare(app, terminal_size=SIZES[size], run_before=before)
    finally:
        pulls.close()
        store.close()


def _remember(store: Conversations) -> None:
    """Conversations of another time, whose dates stay as they are."""
    for n, title in enumerate(("A talk of long ago", "Another look at it")):
        made = store.create(title=title)
        for role, text in (("user", "Do you look forward?"), ("assistant", "Always.")):
            store.put_message(
                Message(made.id + 1 + (role != "user"), made.id, None, role, text, created=LONG_AGO)
            )
        store.touch(made.id, LONG_AGO + n)


async def _ask(pilot: Pilot[None], app: ChatApp) -> None:
    chat = app.screen
    assert isinstance(chat, ChatScreen)
    chat.composer.editor.cursor_blink = False
    await chat.submit(ASKED, ())
    await until(pilot, lambda: chat.answering is None and "first after 0.25 s" in screen_text(app))
    await until(pilot, lambda: "50.0 tok/s  1st" in screen_text(app).replace("first token", "1st"))
    if app.size.width >= 100:
        await until(pilot, lambda: "> What does it look" in screen_text(app))
