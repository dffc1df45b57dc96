"""Keys that come all at once, as over a slow line: each is done when its turn comes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual import events
from tui.driving import Driven, drive
from tui.fakes import FakeSession
from tui.waiting import notes_of

from localllm.tui.conversations.kinds import Message

LONG = "\n".join(f"line {n}" for n in range(50))


def burst(d: Driven, *keys: str | events.Paste) -> None:
    """Posts keys, none of which waits for what the one before does."""
    d.chat.composer.editor.focus()
    for key in keys:
        if isinstance(key, str):
            d.app.post_message(events.Key(key, key if len(key) == 1 else None))
        else:
            d.app.post_message(key)


def asked(d: Driven) -> list[Message]:
    return [message for message in d.path if message.role == "user"]


async def settled(d: Driven, n_asked: int) -> None:
    await d.until(lambda: len(asked(d)) >= n_asked and d.idle)
    for _ in range(3):
        await d.pilot.pause()


def test_keys_behind_enter_are_the_beginning_of_the_next_text(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        burst(d, *"hi", events.Paste(" there"), "enter", "x", *"yz", "backspace")
        await settled(d, 1)
        assert d.contents == ["hi there", "An answer."] and d.chat.composer.text == "xy"
        burst(d, "enter")
        await settled(d, 2)
        assert d.contents[2] == "xy" and d.chat.composer.text == ""

    drive(body, tmp_path)


def test_a_second_enter_sends_nothing_again(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        burst(d, *"one", "enter", "enter", *"two", "enter", "enter", "!")
        await settled(d, 2)
        assert [message.content for message in asked(d)] == ["one", "two"]
        assert d.chat.composer.text == "!" and d.chat.composer.history == ["one", "two"]

    drive(body, tmp_path)


def test_attachments_go_with_the_text_before_enter(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        burst(d, "a", events.Paste(LONG), "enter", "enter", "b", "enter", events.Paste(LONG), "c")
        await settled(d, 2)
        first, second = asked(d)
        assert first.content == "a" and [a.text for a in first.attachments] == [LONG]
        assert second.content == "b" and second.attachments == ()
        assert d.chat.composer.text == "c" and len(d.chat.composer.attached) == 1
        burst(d, "backspace", "backspace", "d", "enter")  # the letter, then what is attached
        await settled(d, 3)
        assert asked(d)[2].content == "d" and asked(d)[2].attachments == ()

    drive(body, tmp_path)


@pytest.mark.parametrize(
    ("typed", "said"), [("see @gone.txt", "there is no file gone.txt"), ("/hlep", "no command")]
)
def test_what_cannot_be_sent_is_given_back_before_what_was_typed_since(
    tmp_path: Path, typed: str, said: str
) -> None:
    async def body(d: Driven) -> None:
        burst(d, *typed, events.Paste(LONG), "enter", *"then", events.Paste(LONG + "!"))
        if typed.startswith("/"):  # a command has no attachments: this is a question
            await settled(d, 1)
            d.chat.composer.take()
            burst(d, *typed, "enter", *"then")
        await d.until(lambda: said in d.text)
        await d.until(lambda: d.chat.composer.text == f"{typed}\n\nthen")
        names = [attachment.text for attachment in d.chat.composer.attached]
        assert names == ([] if typed.startswith("/") else [LONG, LONG + "!"])
        assert d.store.open(d.chat.renew().id).conversation.draft in ("", d.chat.composer.text)
        await d.until(
            lambda: d.store.open(d.chat.renew().id).conversation.draft == d.chat.composer.text
        )

    drive(body, tmp_path, size=(100, 60))


def test_an_edit_that_has_to_wait_is_given_back(tmp_path: Path) -> None:
    gate = threading.Event()
    session = FakeSession([["one"], [gate, "two"], ["three"]])

    async def body(d: Driven) -> None:
        await d.ask("first")
        await d.type("stashed")
        await d.press("f8")
        assert d.chat.editing is not None and d.chat.composer.text == "first"
        question = d.path[-2].id
        await d.chat.answer_to(question)  # by a worker, say
        burst(d, "!", "enter", "x")
        await d.until(lambda: "Esc stops it" in notes_of(d.app))
        await d.until(lambda: d.chat.composer.text == "first!\n\nx")
        assert d.chat.editing is not None
        gate.set()
        await d.until(lambda: d.idle)
        burst(d, "backspace", "backspace", "backspace", "enter", "y")
        await d.until(lambda: d.contents[-2:] == ["first!", "three"] and d.idle)
        await d.until(lambda: d.chat.composer.text == "stashed\n\ny")

    drive(body, tmp_path, session=session, size=(100, 40))


def test_what_the_editor_does_with_keys_keeps_their_order(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        burst(d, *"abc", "backspace", *"de", "left", "f", "ctrl+j", "g", "home", "h", "end", "i")
        await d.until(lambda: d.chat.composer.text.endswith("i"))
        assert d.chat.composer.text == "abdf\nhgei"

    drive(body, tmp_path)


def test_a_completion_is_that_of_the_text_before_it(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        burst(d, *"/syst", "enter", *"be", "space")
        await d.until(lambda: d.chat.composer.text.startswith("/system be"))
        d.chat.composer.take()
        burst(d, *"/temp", "backspace", "backspace", "backspace", "backspace", *"sys", "tab", "x")
        await d.until(lambda: d.chat.composer.text == "/system x")
        assert d.app.focused is d.chat.composer.editor and not d.path

    drive(body, tmp_path)


def test_what_is_typed_while_a_conversation_is_shown_anew_stays(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.type("typed")
        transcript: Any = d.chat.transcript
        opens = transcript.open

        async def slow(*given: Any, **more: Any) -> None:
            await opens(*given, **more)
            burst(d, *" on")
            await d.until(lambda: d.chat.composer.text.endswith("on"))

        transcript.open = slow
        await d.chat.reopen()
        assert d.chat.composer.text == "typed on"

    drive(body, tmp_path)
