"""A session and an opener that follow a script: no model, no engine, no time.

    gate = threading.Event()
    session = FakeSession([["Hel", "lo"], [Thought("Hm."), "Yes", gate, " so"], ["a", error]])

Each answer is a list of steps, taken in order; the last answer repeats. A step is a text, a
`Thought`, a `Chunk` as it is, a `threading.Event` to wait for (`cancel` wakes it), an exception to
raise, or a function to call. Unless a chunk said otherwise the end is a "stop".
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.errors import ArgumentError, CancelledError
from localllm.params import GenerateParams
from localllm.session import Chunk, SessionInfo, Stats
from localllm.tui.opening import Described, LoadOptions, Message


@dataclass(frozen=True)
class Thought:
    """A piece of reasoning."""

    text: str


Step = str | Thought | Chunk | threading.Event | BaseException | Callable[[], None]

INFO = SessionInfo(
    engine="native",
    architecture="llama",
    isa="scalar",
    n_threads=2,
    n_ctx=4096,
    n_params=135_000_000,
    weight_bytes=90 << 20,
    kv_bytes=64 << 20,
    description="Fake 135M Q4_1",
    template="file",
    can_think=True,
    recommended={},
)


class FakeSession:
    """`asked` holds what came in: (messages, params, think) of each answer, `asked_in` the
    conversation, and `went_on` whether it was to go on with the last message."""

    def __init__(self, script: Sequence[Sequence[Step]] = (), **info: Any) -> None:
        self.info = dataclasses.replace(INFO, **info)
        self.script = [list(answer) for answer in script] or [["An answer."]]
        self.stats = Stats(load_s=0.5)
        self.notes: tuple[str, ...] = ()
        self.conversation = ""
        self.asked: list[tuple[list[Message], GenerateParams, bool | str | None]] = []
        self.asked_in: list[str] = []
        self.went_on: list[bool] = []
        self.n_forgotten = 0
        self.is_closed = False
        self.is_lost = False
        self._cancelled = threading.Event()
        self._used = 0

    @property
    def context_used(self) -> int:
        return self._used

    @property
    def progress_tokens(self) -> tuple[int, int]:
        return self.stats.computed_tokens, self.stats.prompt_tokens - self.stats.cached_tokens

    def chat(
        self,
        messages: Sequence[Message],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
        go_on: bool = False,
    ) -> Iterator[Chunk]:
        assert not self.is_closed, "a closed session was asked"
        self.asked.append(([dict(message) for message in messages], params, think))
        self.asked_in.append(self.conversation)
        self.went_on.append(go_on)
        steps = self.script[min(len(self.asked), len(self.script)) - 1]
        n_prompt = sum(len(str(message["content"]).split()) + 1 for message in messages)
        cached = min(self._used, n_prompt)
        self.stats = Stats(load_s=0.5, prompt_tokens=n_prompt, cached_tokens=cached)
        self.stats.computed_tokens = n_prompt - cached
        self.stats.prompt_s = self.stats.first_token_s = 0.25
        self._used = n_prompt
        try:
            for step in steps:
                if self._cancelled.is_set():
                    yield Chunk("", finish_reason="cancelled")
                    return
                for chunk in self._taken(step):
                    yield chunk
                    if chunk.finish_reason is not None:
                        return
            reason = "cancelled" if self._cancelled.is_set() else "stop"
            yield Chunk("", finish_reason=reason)
        finally:
            self._cancelled.clear()

    def _taken(self, step: Step) -> Iterator[Chunk]:
        """What a step gives: nothing, or one chunk."""
        if isinstance(step, threading.Event):
            while not step.wait(0.01) and not self._cancelled.is_set():
                pass
        elif isinstance(step, BaseException):
            raise step
        elif isinstance(step, (str, Thought, Chunk)):
            chunk = step if isinstance(step, Chunk) else _chunk(step)
            self._used += 1
            self.stats.generated_tokens += 1
            self.stats.reasoning_tokens += bool(chunk.reasoning)
            self.stats.decode_s += 0.02  # 50 tokens a second
            yield chunk
        else:
            step()

    def cancel(self) -> None:
        self._cancelled.set()

    def forget(self) -> None:
        self.n_forgotten += 1
        self._used = 0

    def close(self) -> None:
        self.cancel()
        self.is_closed = True


class FakeOpener:
    """Models by name; a name that is not there raises. `opened` holds (name, options) of each load.

    loads: steps of a load by the model's name: shares from 0 to 1, events to wait for, exceptions.
    """

    def __init__(
        self,
        sessions: Mapping[str, FakeSession] | None = None,
        *,
        default: str | None = "fake:135m",
        loads: Mapping[str, Sequence[float | threading.Event | BaseException]] | None = None,
        is_local: bool = True,
        described: Mapping[str, Described] | None = None,
    ) -> None:
        self.sessions = dict(sessions) if sessions is not None else {"fake:135m": FakeSession()}
        self.is_local = is_local
        self.opened: list[tuple[str, LoadOptions]] = []
        self.texts: dict[str, str] = {}  # what `text_of` gives
        self.forgotten: list[str] = []  # conversations
        self.is_closed = False
        self._default, self._loads, self._described = default, dict(loads or {}), described or {}

    def default(self) -> str | None:
        return self._default

    def names(self) -> list[str]:
        return list(self.sessions)

    def describe(self, name: str) -> Described:
        self._look_up(name)
        return self._described.get(name, Described(name, name))

    def text_of(self, name: str, what: str) -> str:
        self._look_up(name)
        if what not in self.texts:
            raise ArgumentError(f"{name} has no {what}")
        return self.texts[what]

    def open(
        self,
        name: str,
        options: LoadOptions,
        *,
        progress: Callable[[float], None],
        notice: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> FakeSession:
        session = self._look_up(name)
        for step in self._loads.get(name, (0.0, 1.0)):
            if cancelled():
                raise CancelledError(f"loading {name} was stopped")
            if isinstance(step, threading.Event):
                while not step.wait(0.01) and not cancelled():
                    pass
            elif isinstance(step, BaseException):
                raise step
            else:
                progress(step)
        if cancelled():
            raise CancelledError(f"loading {name} was stopped")
        self.opened.append((name, options))
        session.is_closed = False
        session._cancelled.clear()
        return session

    def forget_conversation(self, conversation: str) -> int:
        self.forgotten.append(conversation)
        return 0

    def close(self) -> None:
        self.is_closed = True
        for session in self.sessions.values():
            with contextlib.suppress(Exception):
                session.close()

    def _look_up(self, name: str) -> FakeSession:
        if name not in self.sessions:
            raise ArgumentError(f"no model is called {name[:40]}")
        return self.sessions[name]


def _chunk(step: str | Thought) -> Chunk:
    if isinstance(step, Thought):
        return Chunk("", (0,), reasoning=step.text)
    return Chunk(step, (0,))
