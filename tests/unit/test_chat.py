"""Another model for a conversation, and what is left when neither it nor the old one loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localllm.cli import opening
from localllm.cli.finding import Found
from localllm.cli.repl.chat import Chat, NoModelError
from localllm.cli.run import Wishes
from localllm.errors import CancelledError, FileError

WISHES = Wishes(
    opening=opening.Opening(),
    sampling={},
    system=None,
    think=None,
    thinking="fold",
    raw=False,
    record=False,
    verbose=False,
)


class Session:
    """What a switch needs of one."""

    def __init__(self, label: str) -> None:
        self.label, self.closed, self.forgotten = label, False, False

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None:
        self.forgotten = True


class Loads:
    """Stands for `opening`: each load gives the next outcome of its model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **outcomes: list[Any]) -> None:
        self.outcomes = outcomes
        monkeypatch.setattr(opening, "find", lambda name: Found(name, Path(name)))
        monkeypatch.setattr(opening, "load", self.load)

    def load(self, found: Found, how: opening.Opening, *, ends: bool) -> Session:
        assert not ends  # Ctrl-C must not take the conversation along
        outcome = self.outcomes[found.label].pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Session(found.label)


def conversation() -> tuple[Chat, Session]:
    old = Session("old")
    chat = Chat(Found("old", Path("old")), old, WISHES)  # type: ignore[arg-type]
    chat.messages = [{"role": "user", "content": "hi"}]
    return chat, old


def test_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, new=["loads"])
    chat, old = conversation()
    chat.switch("new")
    assert old.closed and chat.found.label == "new"
    assert chat.session.label == "new"  # type: ignore[attr-defined]


@pytest.mark.parametrize("failure", [FileError("gone"), KeyboardInterrupt(), ValueError("x")])
def test_the_old_model_comes_back(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    Loads(monkeypatch, new=[failure], old=["loads"])
    chat, old = conversation()
    with pytest.raises(type(failure)):
        chat.switch("new")
    assert old.closed and chat.session is not old and chat.found.label == "old"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (CancelledError("loading old was stopped"), "loading old was stopped"),
        (KeyboardInterrupt(), "Ctrl-C"),
        (MemoryError("all of it"), "MemoryError: all of it"),
    ],
)
def test_neither_loads(monkeypatch: pytest.MonkeyPatch, second: BaseException, reason: str) -> None:
    Loads(monkeypatch, new=[FileError("new is gone"), "loads"], old=[second])
    chat, _ = conversation()
    with pytest.raises(NoModelError) as caught:
        chat.switch("new")
    assert caught.value.message == "new is gone"
    assert (caught.value.hint or "").startswith(f"old did not come back: {reason}. No model is")
    with pytest.raises(NoModelError, match=f"no model is open: new is gone; .*back: {reason}"):
        chat.send({"role": "user", "content": "there?"})
    assert chat.messages == [{"role": "user", "content": "hi"}] and not chat.recommended
    chat.clear()
    chat.close()
    chat.switch("new")
    assert chat.is_open


def test_the_same_model_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(monkeypatch, old=[FileError("gone"), "loads"])
    chat, _ = conversation()
    with pytest.raises(NoModelError, match="gone"):
        chat.switch("old")
    assert len(loads.outcomes["old"]) == 1 and not chat.is_open


def test_sigterm_is_no_reason_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(monkeypatch, new=[SystemExit(143)], old=["loads"])
    chat, _ = conversation()
    with pytest.raises(SystemExit):
        chat.switch("new")
    assert len(loads.outcomes["old"]) == 1
