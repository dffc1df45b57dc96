"""The chat by keyboard and mouse: asking, stopping, editing, branches."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession, Step, Thought
from tui.waiting import notes_of

from localllm.errors import ContextFullError, LocalLLMError
from localllm.server.client import ServerGoneError
from localllm.session import Chunk
from localllm.tui.opening import Beginning, Described
from localllm.tui.widgets.message import Notice


def test_question_and_answer(tmp_path: Path) -> None:
    session = FakeSession([["Hel", "lo **you**"], ["And on."]])

    async def body(d: Driven) -> None:
        await d.ask("What is [b")
        assert d.contents == ["What is [b", "Hello **you**"]
        assert d.path[1].finish_reason == "stop" and d.path[1].model == "fake:135m"
        assert "What is [b" in d.text and "Hello you" in d.text and "tok/s" in d.text
        await d.ask("And?")
        assert [m["role"] for m in session.asked[1][0]] == ["user", "assistant", "user"]
        assert session.asked_in == [str(d.chat.conversation.id)] * 2  # type: ignore[union-attr]
        assert "What is [b" in d.text.splitlines()[0], "the title is the first question"

    drive(body, tmp_path, session=session)


def test_what_the_command_line_and_the_model_ask_for(tmp_path: Path) -> None:
    session = FakeSession(recommended={"top_k": 7, "temperature": 0.1})
    described = Described(
        "m", "m", system="Be brief.", messages=({"role": "user", "content": "example"},),
        sampling={"temperature": 0.2},
    )  # fmt: skip
    opener = FakeOpener({"m": session}, default="m", described={"m": described})

    async def body(d: Driven) -> None:
        await d.ask("x")
        messages, params, think = session.asked[0]
        assert [m["content"] for m in messages] == ["Be brief.", "example", "x"]
        assert (params.temperature, params.top_k, params.top_p) == (0.3, 7, 0.5)
        assert think is True
        await d.type("/system Be kind.")
        await d.press("enter")
        await d.ask("y")
        assert session.asked[1][0][0]["content"] == "Be kind."

    beginning = Beginning(sampling={"temperature": 0.3, "top_p": 0.5}, think=True)
    drive(body, tmp_path, opener=opener, beginning=beginning)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
def test_stop_keeps_what_is_there(tmp_path: Path, key: str) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: "so far" in d.text)
        await d.press(key)
        await d.until(lambda: d.idle)
        assert d.path[1].content == "so far" and d.path[1].finish_reason == "cancelled"
        assert "stopped" in d.text

    drive(body, tmp_path, session=FakeSession([["so far", gate, " more"]]))


def test_instructions_in_the_middle_are_named(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question")
        d.store.add(d.path[-1].conversation, d.path[-1].id, "system", "Be brief.")
        await d.chat.reopen()
        await d.until(lambda: "■ Instructions  copy" in d.text and "Be brief." in d.text)

    drive(body, tmp_path)


def test_stopped_before_anything_came(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: d.chat.answering is not None)
        await d.press("escape")
        await d.until(lambda: d.idle)
        assert d.contents == ["x"]
        assert len(d.chat.transcript.views) == 1

    drive(body, tmp_path, session=FakeSession([[threading.Event()]]))


def test_a_draft_is_queued_while_an_answer_runs(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        await d.type("one")
        await d.press("enter")
        await d.until(lambda: d.chat.answering is not None)
        await d.type("two")
        await d.press("enter")
        assert "1 queued" in d.text and d.chat.composer.text == ""
        gate.set()
        await d.until(lambda: d.contents == ["one", "first", "two", "second"] and d.idle)

    drive(body, tmp_path, session=FakeSession([["first", gate], ["second"]]))


def test_a_queued_draft_comes_back(tmp_path: Path) -> None:
    gate = threading.Event()
    opener = FakeOpener(loads={"fake:135m": [0.5, gate]})

    async def body(d: Driven) -> None:
        await d.type("while it loads")
        await d.press("enter")
        await d.until(lambda: "loading fake:135m  50%" in d.text and "1 queued" in d.text)
        await d.press("escape")
        assert d.chat.composer.text == "while it loads"
        await d.press("enter")
        gate.set()
        await d.until(lambda: len(d.path) == 2 and d.idle)

    drive(body, tmp_path, opener=opener, loaded=False)


def test_reasoning_is_folded(tmp_path: Path) -> None:
    session = FakeSession([[Thought("one two "), Thought("three"), "The answer."]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        assert "Thought, 3 words" in d.text and "one two three" not in d.text
        assert d.path[1].reasoning == "one two three"
        await d.press("ctrl+up", "t")
        await d.until(lambda: "one two three" in d.text)
        await d.press("t")
        await d.until(lambda: "one two three" not in d.text)
        await d.pilot.click("CollapsibleTitle")
        await d.until(lambda: "one two three" in d.text)
        await d.ask("y")
        assert session.asked[1][0][1]["reasoning_content"] == "one two three"

    drive(body, tmp_path, session=session)


def test_regenerate_and_walk_among_branches(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press("f5")
        await d.until(lambda: d.idle and d.contents == ["x", "second"])
        assert "‹ 2/2 ›" in d.text
        await d.press("ctrl+up", "left")
        await d.until(lambda: d.contents == ["x", "first"])
        assert "‹ 1/2 ›" in d.text and "first" in d.text
        await d.press("left")
        assert d.contents == ["x", "first"], "there is none before the first"
        await d.press("right")
        await d.until(lambda: d.contents == ["x", "second"])
        await d.press("r")
        await d.until(lambda: d.idle and d.contents == ["x", "third"])
        assert "‹ 3/3 ›" in d.text

    drive(body, tmp_path, session=FakeSession([["first"], ["second"], ["third"]]))


def test_edit_and_resend_keeps_the_branch(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("one")
        await d.ask("two")
        await d.type("unsent")
        await d.press("ctrl+up", "up", "up", "up", "e")  # the first message
        assert d.chat.composer.text == "one" and "editing" in d.text
        await d.type("!")
        await d.press("enter")
        await d.until(lambda: d.idle and d.contents == ["one!", "c"])
        assert d.chat.composer.text == "unsent"
        assert "‹ 2/2 ›" in d.text
        await d.press("ctrl+up", "up", "left")
        await d.until(lambda: d.contents == ["one", "a", "two", "b"])

    drive(body, tmp_path, session=FakeSession([["a"], ["b"], ["c"]]))


def test_edit_an_answer(tmp_path: Path) -> None:
    session = FakeSession([["wrong"]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press("ctrl+up", "e", "escape")
        assert d.chat.editing is None and d.chat.composer.text == ""
        await d.press("ctrl+up", "e")
        d.chat.composer.editor.load_text("right")
        await d.press("enter")
        await d.until(lambda: d.contents == ["x", "right"])
        assert len(session.asked) == 1, "an edited answer asks nothing"

    drive(body, tmp_path, session=session)


def test_edit_the_last_question(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("question")
        await d.press("f8")
        assert d.chat.composer.text == "question"
        await d.press("escape")
        assert d.chat.composer.text == ""

    drive(body, tmp_path)


def test_undo_brings_the_text_back(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("one")
        await d.ask("two")
        await d.press("f7")
        await d.until(lambda: d.contents == ["one", "An answer."])
        assert d.chat.composer.text == "two" and len(d.chat.transcript.views) == 2
        d.chat.composer.editor.load_text("")
        await d.press("ctrl+up", "up", "u")
        await d.until(lambda: d.contents == [])
        assert d.chat.composer.text == "one"

    drive(body, tmp_path)


def test_continue_goes_on_with_the_same_answer(tmp_path: Path) -> None:
    session = FakeSession([["begin", Chunk("", finish_reason="length")], [" and end"]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        assert "cut at the limit" in d.text
        await d.press("f6")
        await d.until(lambda: d.idle and d.contents == ["x", "begin and end"])
        assert "begin and end" in d.text and d.path[1].finish_reason == "stop"

    drive(body, tmp_path, session=session)


def test_an_error_in_mid_answer(tmp_path: Path) -> None:
    session = FakeSession([["half", LocalLLMError("the server went away", "Start it.")], ["whole"]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        assert d.path[1].content == "half" and d.path[1].finish_reason == "error"
        await d.until(lambda: "error: the server went away" in d.text and "Start it." in d.text)
        await d.press("f5")
        await d.until(lambda: d.idle and d.contents == ["x", "whole"])
        assert "went away" not in d.text

    drive(body, tmp_path, session=session)


def test_an_error_is_said_in_its_own_conversation(tmp_path: Path) -> None:
    go_on = threading.Event()
    session = FakeSession([["half", go_on, LocalLLMError("it [b broke")]])

    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: "half" in d.text)
        first = d.chat.conversation
        assert first is not None
        session.notes = ("a note on it",)
        await d.press("ctrl+n")
        await d.until(lambda: not d.chat.transcript.views)
        go_on.set()
        await d.until(lambda: "it [b broke" in notes_of(d.app))
        assert not d.app.screen.query(Notice)
        await d.chat.show_conversation(first.id)
        await d.until(lambda: "error: it [b broke" in d.text and "note: a note on it" in d.text)
        await d.chat.reopen()
        assert not d.app.screen.query(Notice)

    drive(body, tmp_path, session=session)


@pytest.mark.parametrize("stopped", [True, False])
def test_an_answer_that_never_began_leaves_nothing(tmp_path: Path, stopped: bool) -> None:
    first: Step = threading.Event() if stopped else LocalLLMError("no")
    session = FakeSession([["one"], [first], ["two"]])

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press("f5")
        await d.until(lambda: len(session.asked) == 2)
        if stopped:
            await d.press("escape")
        await d.until(lambda: d.idle and d.contents == ["x", "one"])
        assert "one" in d.text and "1/2" not in d.text, "what was there is there again"
        await d.press("f5")
        await d.until(lambda: d.idle and d.contents == ["x", "two"])
        assert "2/2" in d.text
        assert len(d.store.every(d.path[0].conversation)) == 3

    drive(body, tmp_path, session=session)


def test_a_full_context(tmp_path: Path) -> None:
    session = FakeSession([[ContextFullError("the prompt has 5000 tokens", "use --ctx")]])

    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: bool(d.app.screen.query(Notice)))
        assert d.contents == ["x"]
        await d.until(lambda: "Ctrl+N begins a new conversation" in d.text)

    drive(body, tmp_path, session=session)


def test_a_model_that_cannot_be_opened(tmp_path: Path) -> None:
    opener = FakeOpener(loads={"fake:135m": [LocalLLMError("the file is gone")]})

    async def body(d: Driven) -> None:
        await d.until(lambda: "error: the file is gone" in d.text and "Ctrl+O" in d.text)

    drive(body, tmp_path, opener=opener, loaded=False)


def test_another_model_in_mid_chat(tmp_path: Path) -> None:
    one, two = FakeSession([["from one"]]), FakeSession([["from two"]])
    loads = {"bad": [LocalLLMError("no room")]}
    opener = FakeOpener({"one": one, "two": two, "bad": two}, default="one", loads=loads)  # type: ignore[arg-type]

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.type("/load two")
        await d.press("enter")
        await d.until(lambda: d.app.model == "two" and not d.app.loading)
        assert one.is_closed
        await d.ask("y")
        assert d.contents[-1] == "from two" and d.path[-1].model == "two"
        assert len(two.asked[0][0]) == 3, "the conversation goes on"
        await d.type("/load bad")
        await d.press("enter")
        await d.until(lambda: "no room" in d.text and d.app.session is two)

    drive(body, tmp_path, opener=opener)


def test_an_answer_goes_on_while_another_conversation_is_shown(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: "begin" in d.text)
        first = d.chat.conversation
        assert first is not None
        await d.press("ctrl+n")
        await d.until(lambda: d.chat.conversation.id != first.id)  # type: ignore[union-attr]
        await d.chat.show_conversation(first.id)
        assert "begin" in d.text
        await d.press("ctrl+n")
        gate.set()
        await d.until(lambda: d.idle)
        assert [m.content for m in d.store.path(first.id)] == ["x", "begin and end"]
        await d.chat.show_conversation(first.id)
        await d.until(lambda: "begin and end" in d.text)

    drive(body, tmp_path, session=FakeSession([["begin", gate, " and end"]]))


def test_quit_keeps_an_answer_that_runs(tmp_path: Path) -> None:
    kept: list[str] = []

    async def body(d: Driven) -> None:
        await d.type("x")
        await d.press("enter")
        await d.until(lambda: "so far" in d.text)
        await d.press("ctrl+q")
        kept.extend(d.contents)
        assert d.path[1].finish_reason == "cancelled"

    drive(body, tmp_path, session=FakeSession([["so far", threading.Event()]]))
    assert kept == ["x", "so far"]


def test_a_server_that_goes_is_replaced(tmp_path: Path) -> None:
    opener = FakeOpener(
        {"fake:135m": FakeSession([["half", ServerGoneError("the server has gone")]])}
    )

    async def body(d: Driven) -> None:
        opener.sessions["fake:135m"] = FakeSession([["whole"]])
        await d.ask("x")
        await d.until(lambda: "the server has gone" in d.text and len(opener.opened) == 2)
        await d.until(lambda: d.app.session is not None and not d.app.loading)
        await d.press("f5")
        await d.until(lambda: d.idle and d.contents == ["x", "whole"])

    drive(body, tmp_path, opener=opener)


def test_a_fault_ends_the_chat_without_a_page_of_its_variables(tmp_path: Path) -> None:
    apps = []

    async def body(d: Driven) -> None:
        apps.append(d.app)
        await d.ask("a question")

        def fails() -> None:
            raise ZeroDivisionError("nobody thought of this")

        d.chat.call_later(fails)
        await d.until(lambda: d.app.fault is not None)

    with pytest.raises(ZeroDivisionError):
        drive(body, tmp_path)
    assert isinstance(apps[0].fault, ZeroDivisionError) and apps[0].return_code == 1
    assert not apps[0]._exit_renderables
