"""What the chat looks like, as pictures: at two sizes, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from tui.fakes import FakeOpener, FakeSession, Thought

from localllm.tui.app import ChatApp
from localllm.tui.conversations.store import Conversations
from localllm.tui.live import Snapshot
from localllm.tui.screens.chat import ChatScreen

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


class Still(ChatScreen):
    """Without figures of the machine."""

    def _watch(self) -> None:
        self._live.show(Snapshot(model="fake:135m", tokens_per_s=50.0, context_size=4096))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
def test_chat(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    theme: str,
) -> None:
    monkeypatch.setattr("localllm.tui.screens.chat.ChatScreen", Still)
    session = FakeSession([[Thought("Let me see."), ANSWER]])
    store = Conversations(tmp_path / "conversations.db")
    app = ChatApp(FakeOpener({"fake:135m": session}), store, config=tmp_path)

    async def before(pilot: Pilot[None]) -> None:
        app.theme = theme
        app.animation_level = "none"
        for _ in range(1000):
            await pilot.pause(0.01)
            if app.session is not None and isinstance(app.screen, ChatScreen):
                break
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        chat.composer.editor.cursor_blink = False
        await chat.submit("What does it look like?", ())
        wanted = ["first after 0.25 s", "50.0 tok/s  context"]
        wanted += ["> What does it look"] if size[0] >= 100 else []
        for _ in range(1000):
            await pilot.pause(0.01)
            shown = "\n".join(strip.text for strip in chat._compositor.render_strips())
            if chat.answering is None and all(text in shown for text in wanted):
                break
        await pilot.pause()

    try:
        assert snap_compare(app, terminal_size=size, run_before=before)
    finally:
        store.close()
