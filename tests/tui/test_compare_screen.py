"""One question to two models: at once or in turn, streamed, stopped, failed, chosen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input, Select
from textual.widgets._collapsible import CollapsibleTitle
from tui.fakes import FakeOpener, FakeSession, Thought
from tui.waiting import screen_text, until

from localllm.errors import ArgumentError, FileError, LocalLLMError
from localllm.params import GenerateParams
from localllm.tui.comparing import Compared, Comparison, room_for_both
from localllm.tui.opening import AnySession, Described, LoadOptions
from localllm.tui.screens.compare import CompareScreen, SideView
from localllm.tui.widgets.answer import Answer
from localllm.tui.widgets.message import Reasoning

PARAMS = GenerateParams(seed=7)


def prepare(question: str, session: AnySession, described: Described) -> Any:
    return [{"role": "user", "content": question}], PARAMS, None


def opener(left: FakeSession, right: FakeSession, n_bytes: int = 1000, **more: Any) -> FakeOpener:
    names = ("a:1b", "b:2b")
    described = {name: Described(name, name, file_bytes=n_bytes) for name in names}
    return FakeOpener({"a:1b": left, "b:2b": right}, described=described, **more)


Body = Callable[[Pilot[Any], CompareScreen, list[Compared | None]], Coroutine[Any, Any, None]]


def use(
    models: FakeOpener, body: Body, size: tuple[int, int] = (80, 24), question: str = "Why?",
    **more: Any,
) -> None:  # fmt: skip
    async def run() -> None:
        app: App[None] = App()
        ended: list[Compared | None] = []
        async with app.run_test(size=size) as pilot:
            screen = CompareScreen(models, prepare, question=question, **more)
            await app.push_screen(screen, ended.append)
            await until(pilot, lambda: screen.views[1].name_chosen == "b:2b")
            await body(pilot, screen, ended)
            if screen.comparison is not None:
                screen.comparison.stop()
                screen.comparison.join(10)

    asyncio.run(run())


def texts(screen: CompareScreen) -> list[str]:
    return [view.answer.source for view in screen.views]


def said(screen: CompareScreen) -> str:
    return str(screen.query_one("#said").render())


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
def test_both_stream_at_once(size: tuple[int, int]) -> None:
    go = threading.Event()
    left = FakeSession([["Hel", "lo ", go, "end"]])
    right = FakeSession([[Thought("Hm."), "Yes [b]", go, " so"]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
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
        assert ended[0] is not None
        found = ended[0]
        assert (found.name, found.question, found.text) == ("b:2b", "Why?", "Yes [b] so")
        assert (found.reasoning, found.finish_reason) == ("Hm.", "stop")
        assert found.stats.generated_tokens == 3
        assert found.other is not None
        assert (found.other.name, found.other.text) == ("a:1b", "Hello end")
        assert left.is_closed
        assert right.is_closed
        assert left.asked[0] == ([{"role": "user", "content": "Why?"}], PARAMS, None)

    use(opener(left, right), body, size)


def test_reasoning_is_unfolded() -> None:
    thought = "Hm. " * 100 + "the end of it"
    models = opener(FakeSession([["no"]]), FakeSession([[Thought(thought), "yes"]]))

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
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

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
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

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: texts(screen) == ["a", "b"])
        await pilot.press("escape")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        assert ended == []
        assert "stopped" in screen.views[0].figures
        assert left.is_closed
        await pilot.press("escape")
        assert ended == [] and "keeps both answers" in said(screen)
        await pilot.press("escape")
        assert ended == [None]

    use(opener(left, right), body)


def test_an_error_of_one_leaves_the_other() -> None:
    left = FakeSession([["part", ArgumentError("it [broke]\x1b", "Do this.")]])
    loads: Mapping[str, Any] = {"b:2b": [0.5, FileError("no such file")]}

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        states = [str(view.query_one(".state").render()) for view in screen.views]
        assert states == ["error: it [broke]\\x1b. Do this.", "error: no such file"]
        assert texts(screen)[0] == "part"
        await pilot.press("f3")
        assert "no finished answer" in said(screen)
        assert ended == []

    use(opener(left, FakeSession(), loads=loads), body)


def test_mouse_and_a_second_question() -> None:
    models = opener(FakeSession([["one"]]), FakeSession([["three"]]))

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
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
        assert ended[0] is not None
        assert (ended[0].name, ended[0].question, ended[0].text) == ("a:1b", "And?", "two")

    use(models, body, question="")


def test_a_question_of_more_lines_is_asked_whole() -> None:
    left = FakeSession([["one"]])
    question = "Why?\n\n  code\n"

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
        assert screen.query_one("#question", Input).value == "Why? code"
        await pilot.press("f5")
        await until(pilot, lambda: "F2 or F3" in said(screen))
        assert left.asked[0][0][0]["content"] == question

    use(opener(left, FakeSession()), body, question=question)


def test_the_second_is_another_one_than_the_first() -> None:
    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
        assert [view.name_chosen for view in screen.views] == ["a:1b", "b:2b"]
        screen.on_compare_screen_named(CompareScreen.Named(["b:2b", "a:1b"]))
        await pilot.pause()
        assert [view.name_chosen for view in screen.views] == ["a:1b", "b:2b"]

    use(opener(FakeSession(), FakeSession()), body, names=("a:1b", ""))


def test_a_model_of_the_users_own_is_offered() -> None:
    models = opener(FakeSession(), FakeSession())
    models.sessions["./mine.gguf"] = FakeSession([["mine"]])

    async def body(pilot: Pilot[Any], screen: CompareScreen, ended: list[Compared | None]) -> None:
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
    comparison = Comparison(opener(left, right), ("a:1b", "b:2b"), "?", prepare, LoadOptions())
    comparison.stop()
    comparison.start()
    comparison.join(10)
    assert [side.state for side in comparison.sides] == ["stopped", "stopped"]
    assert left.asked == right.asked == []


def test_a_fault_reaches_the_screen() -> None:
    def broken(question: str, session: AnySession, described: Described) -> Any:
        raise KeyError("prepare")

    comparison = Comparison(
        opener(FakeSession(), FakeSession()), ("a:1b", "b:2b"), "?", broken, LoadOptions()
    )
    comparison.start()
    comparison.join(10)
    for side in comparison.sides:
        assert isinstance(side.error, LocalLLMError)
        assert "KeyError" in side.error.message
        assert comparison.chosen(side) is None
