"""Going on with an answer that was cut."""

from __future__ import annotations

from pathlib import Path

from tui.driving import Driven, drive
from tui.fakes import FakeSession, Thought
from tui.waiting import notes_of

from localllm.session import Chunk

CUT = Chunk("", finish_reason="length")


def test_what_was_thought_before_stays(tmp_path: Path) -> None:
    session = FakeSession(
        [[Thought("first "), "begin", CUT], [Thought("then"), " and end"], ["other"]]
    )

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press("f6")
        await d.until(lambda: d.idle and d.contents == ["x", "begin and end"])
        assert d.path[1].reasoning == "first then"
        assert session.went_on == [False, True]
        last = {"role": "assistant", "content": "begin", "reasoning_content": "first "}
        assert session.asked[1][0] == [{"role": "user", "content": "x"}, last]

    drive(body, tmp_path, session=session)


def test_nothing_more_to_say_is_said(tmp_path: Path) -> None:
    session = FakeSession([["all of it"], []])

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press("f6")
        await d.until(lambda: "adds nothing" in d.text)
        assert d.idle and d.contents == ["x", "all of it"]

    drive(body, tmp_path, session=session)


def test_only_the_last_answer_goes_on(tmp_path: Path) -> None:
    session = FakeSession([["one", CUT], ["two", CUT], [" end"]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.ask("y")
        await d.press("ctrl+up", "up", "up", "g")
        await d.until(lambda: "Only the last answer" in notes_of(d.app))
        assert len(session.asked) == 2 and d.contents == ["x", "one", "y", "two"]
        await d.press("down", "down", "g")
        await d.until(lambda: d.idle and d.contents == ["x", "one", "y", "two end"])

    drive(body, tmp_path, session=session)


def test_parameters_that_do_not_fit_are_said(tmp_path: Path) -> None:
    session = FakeSession([["one", CUT], [" end"]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        d.store.change(d.path[0].conversation, params={"temperature": 99})
        await d.press("f6")
        await d.until(lambda: "out of range" in d.text)
        assert d.idle and d.chat.answer is None
        d.store.change(d.path[0].conversation, params={})
        await d.press("f6")
        await d.until(lambda: d.idle and d.contents == ["x", "one end"])

    drive(body, tmp_path, session=session)
