"""Writing in the chat, its commands, and what is done with the mouse."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins.nasty import BAD
from textual.events import Paste
from textual.widgets import Input, Static, TextArea
from tui.driving import Driven, drive
from tui.fakes import FakeOpener, FakeSession

from localllm.plain_text import escape
from localllm.tui.opening import Described
from localllm.tui.screens import chat_commands
from localllm.tui.screens.help import HelpScreen, Page
from localllm.tui.widgets.answer import CodeBlock
from localllm.tui.widgets.composer import Chip, Offer
from localllm.tui.widgets.message import MessageView


def test_copy_and_save_code(tmp_path: Path) -> None:
    code = "Here:\n\n```python\nx = [1]\n```\n"

    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press("ctrl+up", "c")
        assert d.app.clipboard == code
        d.app.screen.query_one(CodeBlock).focus()
        await d.press("c")
        assert d.app.clipboard == "x = [1]\n"
        await d.press("s")
        await d.until(lambda: bool(d.app.screen.query(Input)))
        field = d.app.screen.query_one(Input)
        assert field.value == "code.py"
        target = tmp_path / "out.py"
        field.value = str(target)
        await d.press("enter")
        await d.until(lambda: d.app.screen is d.chat)
        assert target.read_text() == "x = [1]\n"
        d.app.screen.query_one(CodeBlock).focus()
        await d.press("s")
        await d.until(lambda: bool(d.app.screen.query(Input)))
        d.app.screen.query_one(Input).value = str(target)
        await d.press("enter")
        await d.until(lambda: "such a file already" in d.text)
        await d.press("enter")
        await d.until(lambda: d.app.screen is d.chat)

    drive(body, tmp_path, session=FakeSession([[code]]))


def test_the_mouse(tmp_path: Path) -> None:
    session = FakeSession([["```\ncode here\n```"], ["two"]])

    async def click(d: Driven, selector: str, word: str, n: int = -1) -> None:
        widget = list(d.app.screen.query(selector))[n]
        x = widget.render_line(0).text.index(word) + len(word) // 2
        await d.pilot.click(widget, offset=(widget.gutter.left + x, 0))
        await d.pilot.pause()

    async def body(d: Driven) -> None:
        await d.ask("first question")
        await click(d, ".code", "copy")
        assert d.app.clipboard == "code here\n"
        await click(d, ".message", "copy", 0)
        assert d.app.clipboard == "first question"
        await click(d, ".message", "regenerate")
        await d.until(lambda: d.idle and d.contents[-1] == "two")
        await click(d, ".message", "‹")
        await d.until(lambda: "code here" in d.contents[-1])
        await click(d, ".message", "edit", 0)
        assert d.chat.composer.text == "first question"
        await d.press("escape")
        await d.pilot.click(d.chat.transcript.views[-1])
        await d.until(lambda: isinstance(d.app.focused, (MessageView, CodeBlock)))

    drive(body, tmp_path, session=session)


def test_attachments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("some notes\n")
    (tmp_path / "cat.png").write_bytes(b"x")
    session = FakeSession()

    async def body(d: Driven) -> None:
        await d.type("sum up @no")
        await d.until(lambda: len(d.chat.composer.offers) == 1)
        await d.press("tab")
        assert d.chat.composer.text == "sum up @notes.txt"
        await d.type(" and @cat.png")
        await d.until(lambda: not d.chat.composer.offers)
        await d.press("enter")
        await d.until(lambda: d.idle and len(d.path) == 2)
        assert [(a.name, a.kind) for a in d.path[0].attachments] == [
            ("notes.txt", "text"), ("cat.png", "image"),
        ]  # fmt: skip
        assert d.path[0].content == "sum up notes.txt and cat.png"
        asked = session.asked[0][0][0]
        assert asked["content"].endswith("notes.txt:\n```\nsome notes\n```")
        assert asked["images"] == [str(tmp_path / "cat.png")]
        await d.type("see @gone.txt")
        await d.press("enter")
        await d.until(lambda: "there is no file gone.txt" in d.text)
        assert d.chat.composer.text == "see @gone.txt", "the text stays"

    drive(body, tmp_path, session=session, size=(80, 40))


def test_a_long_paste_is_a_chip(tmp_path: Path) -> None:
    from textual import events

    session = FakeSession()
    long = "\n".join(f"line {n}" for n in range(50))

    async def body(d: Driven) -> None:
        editor = d.chat.composer.editor
        editor.focus()
        await d.pilot.pause()
        editor.post_message(events.Paste("short\x1b[31m"))
        await d.until(lambda: d.chat.composer.text == "short\\x1b[31m")
        editor.post_message(events.Paste(long))
        await d.until(lambda: len(d.app.screen.query(Chip)) == 1)
        assert "pasted-1.txt, 50 lines" in d.text
        editor.load_text("")
        await d.press("backspace")
        await d.until(lambda: not d.app.screen.query(Chip))
        editor.post_message(events.Paste(long + "\n"))
        await d.until(lambda: len(d.app.screen.query(Chip)) == 1)
        assert "50 lines" in d.text
        await d.pilot.click(Chip)
        await d.until(lambda: not d.app.screen.query(Chip))
        editor.post_message(events.Paste(long))
        await d.until(lambda: len(d.app.screen.query(Chip)) == 1)
        await d.press("enter")
        await d.until(lambda: d.idle and len(d.path) == 2)
        assert d.path[0].attachments[0].text == long
        assert "line 49" in session.asked[0][0][0]["content"]

    drive(body, tmp_path, session=session)


def test_lines_and_history(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.type("a")
        await d.press("ctrl+j", "b", "shift+enter", "c")
        assert d.chat.composer.text == "a\nb\nc"
        await d.press("enter")
        await d.until(lambda: d.idle and len(d.path) == 2)
        await d.ask("second")
        await d.type("draft")
        await d.press("up")
        assert d.chat.composer.text == "second"
        await d.press("up", "up", "up", "up")
        assert d.chat.composer.text == "a\nb\nc"
        await d.press("down", "down", "down")  # two of them within the text
        assert d.chat.composer.text == "second"
        await d.press("down")
        assert d.chat.composer.text == "draft"

    drive(body, tmp_path)


def test_what_is_recalled_is_shown_escaped_and_sent_exactly(tmp_path: Path) -> None:
    session = FakeSession()
    evil = "a\x1b]0;title\x07\r\nb\u2028c"

    async def body(d: Driven) -> None:
        chat, editor = d.chat, d.chat.composer.editor
        assert chat.conversation is not None
        question = d.store.add(chat.conversation.id, None, "user", evil)
        d.store.add(chat.conversation.id, question.id, "assistant", "y", finish_reason="stop")
        await chat.reopen()
        editor.focus()
        await d.press("up")
        assert chat.composer.text == evil
        assert editor.text == escape(evil) and not BAD.search(d.text.replace("\n", ""))
        await d.press("down", "up", "enter")
        await d.until(lambda: d.idle and len(d.path) == 4)
        assert d.path[2].content == evil == session.asked[0][0][-1]["content"]
        editor.focus()
        await d.press("f7", "z")  # undone, and changed: what is shown is meant
        assert chat.composer.text == editor.text == escape(evil) + "z"

    drive(body, tmp_path, session=session)


@pytest.mark.parametrize(
    "keys", [["ctrl+f"], ["ctrl+s"], ["ctrl+b", "slash"], ["ctrl+p"], ["f2"]], ids="".join
)
def test_what_is_pasted_into_a_field_is_escaped(tmp_path: Path, keys: list[str]) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        await d.press(*keys)
        await d.until(lambda: isinstance(d.app.focused, (Input, TextArea)))
        await d.until(lambda: d.app.focused is not d.chat.composer.editor)
        d.app.post_message(Paste("a\x1b]0;x\x07"))
        await d.until(lambda: r"a\x1b]0;x" in d.text)
        assert not BAD.search(d.text.replace("\n", ""))

    drive(body, tmp_path, size=(110, 24))


def test_a_name_that_is_offered_is_escaped(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.type("@")
        await d.until(lambda: d.chat.composer.offers)  # those of the files that are here came late
        d.chat.composer._offer([Offer(1, "@\x1b]0;x\x07", "name")])
        await d.press("tab")
        assert d.chat.composer.editor.text == r"@\x1b]0;x\x07"

    drive(body, tmp_path)


def test_commands(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.type("/")
        await d.until(lambda: "/system" in d.text)
        await d.type("tem")
        await d.until(lambda: not d.chat.composer.offers)
        d.chat.composer.editor.load_text("")
        for text, shown in {
            "/set temperature 0.2": "temperature is 0.2",
            "/set temperature 9": "out of range",
            "/stats": "there is no answer yet",
            "/think low": "reasoning: low",
            "/show": "of 4,096 tokens",
            "/show licence": "There is: info, license, modelfile",
            "/show license": "has no license",
            "/hlep": "Did you mean /help?",
            "/help set": "change a parameter",
        }.items():
            d.chat.composer.editor.load_text("")
            await d.type(text)
            d.chat.composer.dismiss_offers()
            await d.press("enter")
            await d.until(lambda shown=shown: shown in d.text)  # type: ignore[misc]
        assert d.chat.composer.text == "", "a command that was done is gone"
        conversation = d.chat.renew()
        assert dict(conversation.params) == {"temperature": 0.2} and conversation.think == "low"
        await d.type("/nothing")
        await d.press("enter")
        await d.until(lambda: "no command /nothing" in d.text)
        assert d.chat.composer.text == "/nothing", "one that was not done stays"

    drive(body, tmp_path, size=(80, 60))


def test_texts_of_the_model_are_a_page(tmp_path: Path) -> None:
    opener = FakeOpener()
    opener.texts = {
        "license": "MIT [b\x1b[2J\n" + "word " * 2000 + "the end",
        "modelfile": "FROM /x.gguf\n",
        "template": "{{ messages }}",
    }

    async def body(d: Driven) -> None:
        for what, shown in {
            "license": "MIT [b\\x1b[2J",
            "modelfile": "FROM /x.gguf",
            "template": "{{ messages }}",
        }.items():
            await d.type(f"/show {what}")
            await d.press("enter")
            await d.until(lambda shown=shown: shown in d.text)  # type: ignore[misc]
            if what == "license":
                await d.press("end")
                await d.until(lambda: "the end" in d.text)
            await d.press("q")
            await d.until(lambda: d.app.screen is d.chat)

    drive(body, tmp_path, opener=opener)


@pytest.mark.parametrize("key", ["f1", "?"])
def test_help(tmp_path: Path, key: str) -> None:
    async def body(d: Driven) -> None:
        if key == "?":
            await d.ask("x")
            await d.press("ctrl+up", "question_mark")
        else:
            await d.press(key)
        await d.until(lambda: isinstance(d.app.screen, HelpScreen))
        assert "Ctrl+N" in d.text and "New chat" in d.text
        await d.press("escape")
        assert d.app.screen is d.chat

    drive(body, tmp_path)


def test_drafts_and_new_chats(tmp_path: Path) -> None:
    async def body(d: Driven) -> None:
        await d.ask("x")
        first = d.chat.conversation
        assert first is not None
        await d.type("not sent")
        await d.press("ctrl+n")
        await d.until(lambda: d.chat.conversation.id != first.id)  # type: ignore[union-attr]
        assert d.chat.composer.text == "" and not d.chat.transcript.views
        await d.chat.show_conversation(first.id)
        assert d.chat.composer.text == "not sent" and len(d.chat.transcript.views) == 2

    drive(body, tmp_path)


def test_themes(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('primary = "#88c0d0"\nbackground = "#2e3440"\n')
    (folder / "bad.toml").write_text('primary = "no colour"\n')

    async def body(d: Driven) -> None:
        assert "mine" in d.app.available_themes and "bad" not in d.app.available_themes
        before = d.app.theme
        await d.press("f9")
        assert d.app.theme != before
        await d.until(lambda: (tmp_path / "config" / "theme").exists())
        assert (tmp_path / "config" / "theme").read_text().strip() == d.app.theme

    drive(body, tmp_path)


def test_every_key_of_the_table_does_something(tmp_path: Path) -> None:
    from localllm.tui.keys import KEYS
    from localllm.tui.widgets.composer import Editor
    from localllm.tui.widgets.sidebar import ConversationList

    places: dict[str, tuple[type, ...]] = {
        "everywhere": (), "editor": (Editor,), "message": (MessageView,), "code": (CodeBlock,),
        "list": (ConversationList,),
    }  # fmt: skip

    async def body(d: Driven) -> None:
        for row in KEYS:
            if not row.action:
                continue
            name = f"action_{row.action.removeprefix('app.').partition('(')[0]}"
            owners = places[row.where] or (type(d.chat), type(d.app))
            assert any(hasattr(owner, name) for owner in owners), row

    drive(body, tmp_path)


def test_figures_that_are_none_are_not_summed_and_a_fault_does_not_end_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(d: Driven) -> None:
        await d.ask("a question")
        answer = d.path[-1]
        d.store.finish(
            answer.id,
            "x",
            finish_reason="stop",
            stats={"generated_tokens": "x", "cached_tokens": 7},
        )
        await d.type("/stats")
        d.chat.composer.dismiss_offers()
        await d.press("enter")
        await d.until(lambda: "1 answers: 0 tokens generated, 0 read, 7 of them" in d.text)

        def fails(chat: object, argument: str) -> None:
            raise ZeroDivisionError("nobody thought of this")

        monkeypatch.setitem(chat_commands.DONE_BY, "stats", fails)
        await d.type("/stats")
        d.chat.composer.dismiss_offers()
        await d.press("enter")
        await d.until(lambda: "ZeroDivisionError: nobody thought of this" in d.text)

    drive(body, tmp_path, size=(100, 40))


def test_parameters_are_those_of_the_next_answer(tmp_path: Path) -> None:
    carried = Described("fake:135m", "fake:135m", sampling={"temperature": 0.0, "top_k": 7})
    opener = FakeOpener({"fake:135m": FakeSession()}, described={"fake:135m": carried})

    async def body(d: Driven) -> None:
        for command, shown in (
            ("/set top_k 9", "top_k is 9."),
            ("/set temperature", "temperature is 0.0 (set by the model)."),
            ("/set seed", "seed is a new one for each answer."),
            ("/set min_p", "min_p is 0.05."),
            ("/show parameters", "top_k: 9"),
        ):
            await d.type(command)
            d.chat.composer.dismiss_offers()
            await d.press("enter")
            await d.until(lambda shown=shown: shown in squeezed(d.text))  # type: ignore[misc]
        await d.until(lambda: "temperature: 0.0 (set by the model)" in squeezed(d.text))

    def squeezed(text: str) -> str:
        return " ".join(text.split())

    drive(body, tmp_path, opener=opener, size=(100, 60))


def test_a_page_is_cut_where_it_would_hold_the_screen_up(tmp_path: Path) -> None:
    opener = FakeOpener()
    opener.texts = {"template": "{{ messages }}\n" * 20_000}

    async def body(d: Driven) -> None:
        await d.type("/show template")
        await d.press("enter")
        await d.until(lambda: isinstance(d.app.screen, Page))
        shown = str(d.app.screen.query_one("#help", Static).render())
        assert shown.endswith("[200,000 characters more: localllm show --template]")

    drive(body, tmp_path, opener=opener)
