"""One answer on its way, and its end."""

from __future__ import annotations

from fakes import FakeSession

from localllm.params import GenerateParams
from localllm.tui.answering import Answering

ASKED = [{"role": "user", "content": "q"}]


def _answering(session: FakeSession) -> Answering:
    return Answering(session, ASKED, GenerateParams(), None)  # type: ignore[arg-type]


def test_a_stop_that_comes_too_late_stops_no_other_answer() -> None:
    """The screen takes up to a second to see that an answer has ended; Esc is for that one."""
    session = FakeSession([["one"], ["two"]])
    first, second = _answering(session), _answering(session)
    first.run()
    first.stop()
    second.run()
    assert (first.take().finish_reason, first.stopping) == ("stop", True)
    piece = second.take()
    assert (piece.text, piece.finish_reason) == ("two", "stop")


def test_a_stop_ends_the_answer() -> None:
    session = FakeSession()
    answering = _answering(session)
    session.script = [["one", answering.stop, "two"], ["three"]]
    answering.run()
    piece = answering.take()
    assert (piece.text, piece.finish_reason) == ("one", "cancelled")
    after = _answering(session)
    after.run()
    assert after.take().text == "three"
