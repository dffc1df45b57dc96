"""The stand-ins do what the protocols say."""

from __future__ import annotations

import threading

import pytest
from tui.fakes import FakeOpener, FakeSession, Thought

from localllm.errors import ArgumentError, CancelledError, LocalLLMError
from localllm.params import GenerateParams
from localllm.tui.opening import AnySession, LoadOptions, Opener

ASKED = [{"role": "user", "content": "What is it?"}]


def answered(session: AnySession) -> tuple[str, str, str | None]:
    chunks = list(session.chat(ASKED, GenerateParams()))
    text = "".join(chunk.text for chunk in chunks)
    return text, "".join(chunk.reasoning for chunk in chunks), chunks[-1].finish_reason


def test_a_script_is_followed() -> None:
    session = FakeSession([["a", "b"], [Thought("hm"), "c"], ["d", LocalLLMError("gone")]])
    assert answered(session) == ("ab", "", "stop")
    assert answered(session) == ("c", "hm", "stop")
    with pytest.raises(LocalLLMError, match="gone"):
        answered(session)
    assert len(session.asked) == 3
    assert session.stats.generated_tokens == 1


def test_a_cancel_ends_a_wait_and_is_taken_back() -> None:
    session = FakeSession([["a", threading.Event(), "b"], ["c"]])
    chunks = session.chat(ASKED, GenerateParams())
    assert next(chunks).text == "a"
    session.cancel()
    assert [chunk.finish_reason for chunk in chunks] == ["cancelled"]
    assert answered(session) == ("c", "", "stop")


def test_an_opener_loads_and_stops_loading() -> None:
    shares: list[float] = []
    gate = threading.Event()
    opener: Opener = FakeOpener({"a": FakeSession()}, loads={"a": (0.0, gate, 1.0)})
    with pytest.raises(CancelledError):
        opener.open(
            "a",
            LoadOptions(),
            progress=shares.append,
            notice=lambda line: None,
            cancelled=lambda: bool(shares),
        )
    assert shares == [0.0]
    gate.set()
    session = opener.open(
        "a", LoadOptions(), progress=shares.append, notice=print, cancelled=lambda: False
    )
    assert answered(session) == ("An answer.", "", "stop")
    with pytest.raises(ArgumentError):
        opener.describe("b")
