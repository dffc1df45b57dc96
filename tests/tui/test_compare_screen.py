"""One question to two models: at once or in turn, streamed, stopped, failed, chosen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input, Select
from textual.widgets._collapsible import CollapsibleTitle
from tui.fakes import FakeOpener, FakeSession, Thought
from tui.keeping import empty_conversation
from tui.waiting import screen_text, until

from localllm.errors import ArgumentError, FileError, LocalLLMError
from localllm.params import GenerateParams
from localllm.tui.compared import Compared
from localllm.tui.comparing import Comparison, room_for_both
from localllm.tui.conversations.kinds import Attachment, Message
from localllm.tui.conversations.store import Conversations
from localllm.tui.opening import AnySession, Described, LoadOptions
from localllm.tui.screens.compare import CompareScreen, SideView
from localllm.tui.widgets.answer import Answer
from localllm.tui.widgets.message import Reasoning

PARAMS = GenerateParams(seed=7)


def prepare(question: Message, session: AnySession, described: Described) -> Any:
    return [{"role": "user", "content": question.content}], PARAMS, None


QUESTION = Message(1, 1, None, "user", "?")


def opener(left: FakeSession, right: FakeSession, n_bytes: int = 1000, **more: Any) -> FakeOpener:
    names = ("a:1b", "b:2b")
    described = {name: Described(name, name, file_bytes=n_bytes) for name in names}
    return FakeOpener({"a:1b": left, "b:2b": right}, described=described, **more)


Body = Callable[[Pilot[Any], CompareScreen, list[str | None]], Coroutine[Any, Any, None]]


def use(
    models: FakeOpener, body: Body, size: tuple[int, int] = (80, 24), question: str = "Why?",
    after: Callable[[CompareScreen], None] | None = None, **more: Any,
) -> None:  # fmt: skip
    """after: what is looked at when the program has ended."""

    async def run(kept: Compared) -> None:
        app: App[None] = App()
        ended: list[str | None] = []
        async with app.run_test(size=size) as pilot:
            screen = CompareScreen(models, prepare, kept, question=question, **more)
            await app.push_screen(screen, ended.append)
            await until(pilot, lambda: screen.views[1].name_chosen == "b:2b")
            await body(pilot, screen, ended)
            if screen.comparison is not None:
                screen.comparison.stop()
                screen.comparison.join(10)
        if after is not None:
            after(screen)

    with empty_conversation() as kept:
        asyncio.run(run(kept))


def kept(screen: CompareScreen, store: Conversations | None = None) -> list[tuple[Any, ...]]:
    """(role, content, model, finish_reason) of all that is kept in the conversation."""
    compared = screen._kept
    messages = (store or compared._store).every(compared._conversation)
    return [(m.role, m.content, m.model, m.finish_reason) for m in messages]


def shown(screen: CompareScreen) -> list[str]:
    """What the conversation shows."""
    return [m.content for m in screen._kept._store.path(screen._kept._conversation)]


def texts(screen: CompareScreen) -> list[str]:
    return [view.answer.source for view in screen.views]


def said(screen: CompareScreen) -> str:
    return str(screen.query_one("#said").render())


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
def test_both_stream_at_once(size: tuple[int, int]) -> None:
    go = threading.Event()
    left = FakeSession([["Hel", "lo ", go, "end"]])
    right = FakeSession([[Thought("Hm."), "Yes [b]", go, " so"]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: texts(screen) == ["Hello ", "Yes [b]"])
        assert "Both at once" in said(screen)
        await pilot.press("f2")
        assert "no finished answer" in said(screen)
        await pilot.press("enter")
        assert "asked already" in said(screen)
        go.set()
        await until(pilot, lambda: texts(screen) == ["Hello end", "Yes [b] so"])
        await until(pilot, lambda: "F2 or F3" in said(screen))
        figures = [view.figures for view in screen.views]
        assert "done · 3 tokens, 33.3 tok/s · first after 0.25 s" in figures[0]
        assert len(screen.views[1].query(Reasoning)) == 1
        await pilot.press("f3")
        assert ended == ["b:2b"]
        assert kept(screen) == [
            ("user", "Why?", "", ""),
            ("assistant", "Hello end", "a:1b", "stop"),
            ("assistant", "Yes [b] so", "b:2b", "stop"),
        ]
        assert shown(screen) == ["Why?", "Yes [b] so"]
        last = screen._kept._store.path(screen._kept._conversation)[-1]
        assert last.reasoning == "Hm." and last.stats["generated_tokens"] == 3
        assert left.is_closed
        assert right.is_closed
        assert left.asked[0] == ([{"role": "user", "content": "Why?"}], PARAMS, None)

    use(opener(left, right), body, size)


def test_reasoning_is_unfolded() -> None:
    thought = "Hm. " * 100 + "the end of it"
    models = opener(FakeSession([["no"]]), FakeSession([[Thought(thought), "yes"]]))

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        left, right = (view.query(Reasoning) for view in screen.views)
        assert not left and len(right) == 1 and "Thought, 104 words" in screen_text(pilot.app)
        await pilot.click(right.first().query_one(CollapsibleTitle))
        await until(pilot, lambda: bool(right.first().query(Answer)))
        assert right.first().query_one(Answer).source == thought
        models.sessions["a:1b"] = FakeSession([["two"]])  # each load gives another one
        models.sessions["b:2b"] = FakeSession([[Thought("Well."), "four"]])
        await pilot.press("f5")
        await until(pilot, lambda: texts(screen) == ["two", "four"])
        assert len(screen.views[1].query(Reasoning)) == 1

    use(models, body)


def test_one_after_the_other_where_memory_is_short() -> None:
    go = threading.Event()
    left, right = FakeSession([["one ", go, "end"]]), FakeSession([["two"]])
    models = opener(left, right, n_bytes=1 << 60)

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: texts(screen)[0] == "one ")
        assert "One after the other" in said(screen)
        assert [name for name, _ in models.opened] == ["a:1b"]
        assert "waiting" in screen.views[1].figures
        go.set()
        await until(pilot, lambda: texts(screen) == ["one end", "two"])
        assert left.is_closed
        assert [name for name, _ in models.opened] == ["a:1b", "b:2b"]
        assert models.opened[0][1] == LoadOptions(0, "q8_0")

    use(models, body, options=LoadOptions(0, "q8_0"))


def test_escape_stops_then_leaves() -> None:
    never = threading.Event()
    left, right = FakeSession([["a", never]]), FakeSession([["b", never]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: texts(screen) == ["a", "b"])
        await pilot.press("escape")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        assert ended == []
        assert "stopped" in screen.views[0].figures
        assert left.is_closed
        await pilot.press("escape")
        assert ended == [None]
        assert [row[3] for row in kept(screen)] == ["", "cancelled", "cancelled"]

    use(opener(left, right), body)


def test_an_error_of_one_leaves_the_other() -> None:
    left = FakeSession([["part", ArgumentError("it [broke]\x1b", "Do this.")]])
    loads: Mapping[str, Any] = {"b:2b": [0.5, FileError("no such file")]}

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        states = [str(view.query_one(".state").render()) for view in screen.views]
        assert states == ["error: it [broke]\\x1b. Do this.", "error: no such file"]
        assert texts(screen)[0] == "part"
        await pilot.press("f3")
        assert "no finished answer" in said(screen)
        assert ended == []
        assert kept(screen)[1:] == [("assistant", "part", "a:1b", "error")]
        assert shown(screen) == ["Why?", "part"]

    use(opener(left, FakeSession(), loads=loads), body)


def test_mouse_and_a_second_question() -> None:
    models = opener(FakeSession([["one"]]), FakeSession([["three"]]))

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("f5")
        assert "Type a question" in said(screen)
        await pilot.click("#question")
        await pilot.press(*"Why?", "enter")
        await until(pilot, lambda: texts(screen) == ["one", "three"])
        await until(pilot, lambda: screen.comparison is not None and screen.comparison.is_over)
        models.sessions["a:1b"] = FakeSession([["two"]])  # each load gives another one
        models.sessions["b:2b"] = FakeSession([["four"]])
        screen.query_one("#question", Input).value = "And?"
        await pilot.press("f5")
        await until(pilot, lambda: texts(screen) == ["two", "four"])
        await until(pilot, lambda: "F2 or F3" in said(screen))
        await pilot.click(screen.query_one("#left", SideView).query_one(Button))
        assert ended == ["a:1b"]
        assert shown(screen) == ["And?", "two"]
        assert sorted(row[1] for row in kept(screen)) == [
            "And?",
            "Why?",
            "four",
            "one",
            "three",
            "two",
        ]

    use(models, body, question="")


def test_a_question_of_more_lines_is_asked_whole() -> None:
    left = FakeSession([["one"]])
    question = "Why?\n\n  code\n"

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        assert screen.query_one("#question", Input).value == "Why? code"
        await pilot.press("f5")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        assert left.asked[0][0][0]["content"] == "Why?\n\n  code"

    use(opener(left, FakeSession()), body, question=question)


def test_the_second_is_another_one_than_the_first() -> None:
    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        assert [view.name_chosen for view in screen.views] == ["a:1b", "b:2b"]
        screen.on_compare_screen_named(CompareScreen.Named(["b:2b", "a:1b"]))
        await pilot.pause()
        assert [view.name_chosen for view in screen.views] == ["a:1b", "b:2b"]

    use(opener(FakeSession(), FakeSession()), body, names=("a:1b", ""))


def test_a_model_of_the_users_own_is_offered() -> None:
    models = opener(FakeSession(), FakeSession())
    models.sessions["./mine.gguf"] = FakeSession([["mine"]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        assert screen.views[0].query_one(Select).value == "./mine.gguf"

    use(models, body, names=("./mine.gguf", "b:2b"))


def test_room() -> None:
    models = opener(FakeSession(), FakeSession(), n_bytes=4_000_000_000)
    both = ("a:1b", "b:2b")
    assert room_for_both(models, both, lambda: 11_000_000_000)
    assert not room_for_both(models, both, lambda: 10_999_999_999)
    assert room_for_both(models, ("a:1b", "a:1b"), lambda: 5_500_000_000)
    assert not room_for_both(opener(FakeSession(), FakeSession(), n_bytes=0), both)
    models.is_local = False
    assert room_for_both(models, both, lambda: 0)


def test_stopped_before_it_begins() -> None:
    left, right = FakeSession(), FakeSession()
    comparison = Comparison(opener(left, right), ("a:1b", "b:2b"), QUESTION, prepare, LoadOptions())
    comparison.stop()
    comparison.start()
    comparison.join(10)
    assert [side.state for side in comparison.sides] == ["stopped", "stopped"]
    assert left.asked == right.asked == []


def test_a_fault_reaches_the_screen() -> None:
    def broken(question: str, session: AnySession, described: Described) -> Any:
        raise KeyError("prepare")

    comparison = Comparison(
        opener(FakeSession(), FakeSession()), ("a:1b", "b:2b"), QUESTION, broken, LoadOptions()
    )
    comparison.start()
    comparison.join(10)
    for side in comparison.sides:
        assert isinstance(side.error, LocalLLMError)
        assert "KeyError" in side.error.message
        assert side.words == ("", "") and side.ended_by == "error"


def test_what_is_answered_is_on_the_disk_at_once() -> None:
    """As after a kill -9: another program reads the file while both still answer."""
    never = threading.Event()
    left, right = FakeSession([["so far", never]]), FakeSession([[Thought("Hm."), never]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        other = Conversations(screen._kept._store.file)
        try:
            wanted = [
                ("user", "Why?", "", ""),
                ("assistant", "so far", "a:1b", None),
                ("assistant", "", "b:2b", None),
            ]
            await until(pilot, lambda: kept(screen, other) == wanted)
            await until(
                pilot, lambda: other.every(screen._kept._conversation)[2].reasoning == "Hm."
            )
        finally:
            other.close()

    use(opener(left, right), body)


def test_what_is_there_stays_when_the_program_is_left() -> None:
    never = threading.Event()
    left, right = FakeSession([["so far", never]]), FakeSession([[never]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: texts(screen)[0] == "so far" and len(right.asked) == 1)
        assert [row[3] for row in kept(screen)] == ["", None, None]

    def after(screen: CompareScreen) -> None:
        assert kept(screen)[1:] == [("assistant", "so far", "a:1b", "cancelled")]
        assert shown(screen) == ["Why?", "so far"]

    use(opener(left, right), body, after=after)


def test_nothing_came_and_nothing_stays() -> None:
    loads: Mapping[str, Any] = {name: [FileError("no such file")] for name in ("a:1b", "b:2b")}
    models = opener(FakeSession([["one"]]), FakeSession([["two"]]), loads=loads)

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        assert kept(screen) == [] and not screen._kept.has_answers
        models._loads.clear()
        await pilot.press("enter")
        await until(pilot, lambda: texts(screen) == ["one", "two"] and "F2 or F3" in said(screen))
        await pilot.press("enter")  # the same question gets further branches
        await until(pilot, lambda: len(kept(screen)) == 5 and "F2 or F3" in said(screen))
        assert len([row for row in kept(screen) if row[0] == "user"]) == 1

    use(models, body)


def test_files_go_along(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk")
    attached = [Attachment("pasted-1.txt", "text", "eggs")]

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[str | None]) -> None:
        assert said(screen) == "With pasted-1.txt"
        await pilot.press("enter")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        question = screen._kept._store.path(screen._kept._conversation)[0]
        assert question.content == "What is in notes.txt"
        assert [each.text for each in question.attachments] == ["eggs", "milk"]
        screen.query_one("#question", Input).value = f"And @{tmp_path}/none.txt"
        await pilot.press("enter")
        assert "none.txt" in said(screen)

    models = opener(FakeSession([["one"]]), FakeSession([["two"]]))
    use(models, body, question=f"What is in @{tmp_path}/notes.txt", attached=attached)
