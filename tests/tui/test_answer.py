"""Markdown that grows: the leaves are those of the whole text, and little is drawn anew."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from stand_ins.nasty import BAD
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from localllm.tui.blocks import Hanging
from localllm.tui.leaves import CODE_LINES, LONG, Leaf, Reader, leaves_of
from localllm.tui.widgets.answer import Answer, CodeBlock, Passage
from localllm.tui.widgets.message import Reasoning
from localllm.tui.widgets.sheet import Part, Sheet

SAMPLE = """# Head

Para **bold** `code` and [x](http://a.b).
goes on

- one
- two
  - nested
    more

  para in two
- three

1. a
2. b

> quote
> - q item

```python
x = 1

def f(): pass
```

Setext
======

| a | b |
|---|---|
| 1 | **2** |

    indented code

---
~~~
tildes
```
~~~
end <b>raw</b> [unterminated
"""


def streamed(text: str, sizes: list[int]) -> list[Leaf]:
    reader, out, at = Reader(), [], 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        out += reader.read(text[at : at + size])
        reader.rest()
        at += size
    return out + reader.rest(ended=True)


def joined(leaves: list[Leaf]) -> list[tuple[object, ...]]:
    """Code in one piece, however it was cut."""
    out: list[tuple[object, ...]] = []
    for leaf in leaves:
        if leaf.kind == "code" and leaf.part:
            *rest, code = out.pop()
            out.append((*rest, f"{code}\n{leaf.code}"))
        else:
            out.append((leaf.kind, leaf.spans, leaf.prefix, leaf.level, leaf.rows, leaf.code))
    return out


@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [7], [50, 1, 9], [1000]], ids=str)
def test_pieces_give_the_leaves_of_the_whole(sizes: list[int]) -> None:
    long_code = "```c\n" + "\n".join(f"int x{n};" for n in range(3 * CODE_LINES)) + "\n```\n"
    text = SAMPLE + long_code + "after\n"
    assert joined(streamed(text, sizes)) == joined(leaves_of(text))
    kinds = [leaf.kind for leaf in leaves_of(SAMPLE)]
    assert kinds.count("code") == 3 and "table" in kinds and "rule" in kinds


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_long_answer_keeps_its_form(size: int) -> None:
    block = "# Head {0}\n\n```python\nx{0} = 1\n```\n\n- item {0}\n\n" + "word " * 100 + "\n\n"
    text = "".join(block.format(n) for n in range(60))
    assert len(text) > 2 * LONG
    assert [leaf.kind for leaf in streamed(text, [size])] == [
        "heading",
        "code",
        "text",
        "text",
    ] * 60
    fits = "some **bold** text " * ((LONG - 200) // 19)
    for before in range(1, LONG, 1500):  # wherever it begins in what is read together
        kinds = [
            (leaf.kind, len(leaf.spans))
            for leaf in streamed(f"# {'x' * before}\n{fits}\n\ny", [size])
        ]
        assert kinds == [("heading", 1), ("text", 2 * fits.count("bold") + 1), ("text", 1)]


@pytest.mark.parametrize(
    ("text", "kind", "plain"),
    [
        ("<script>x</script>", "text", "<script>x</script>"),
        ("[red]no markup[/] [b", "text", "[red]no markup[/] [b"),
        ("![alt](pic.png)", "text", "[image: alt]"),
        ("[name](javascript:alert)", "text", "[name](javascript:alert)"),
        ("[name](http://a.b)", "text", "name (http://a.b)"),
        ("```py\nopen", "code", "open"),
        ("```py", "code", ""),
        ("", "", ""),
    ],
)
def test_texts(text: str, kind: str, plain: str) -> None:
    leaves = leaves_of(text)
    assert [leaf.kind for leaf in leaves] == ([kind] if kind else [])
    assert "".join(leaf.plain for leaf in leaves) == plain


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "[" * 30_000, "> " * 20_000, "* " * 9000 + "x"], ids="abcd"
)
def test_a_block_without_end_is_cut(text: str) -> None:
    reader = Reader()
    finished = reader.read(text)
    assert len(finished) == len(text) // LONG
    assert sum(len(leaf.plain) for leaf in reader.rest()) <= LONG


class Shown(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.answer = Answer()

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.answer


def words(n: int, seed: int) -> str:
    return " ".join(
        random.Random(seed).choices(["some", "words", "of", "an", "answer", "here"], k=n)
    )


def answer_of_4k_tokens() -> str:
    """Paragraphs, lists and code, about 16,000 characters."""
    out: list[str] = []
    while sum(map(len, out)) < 16_000:
        n = len(out)
        out.append(words(60, n) + ".\n\n")
        out.append("\n".join(f"- {words(9, n + i)}" for i in range(8)) + "\n\n")
        out.append("```python\n" + "\n".join(f"x{i} = f({i})" for i in range(20)) + "\n```\n\n")
    return "".join(out)[:16_000]


@pytest.mark.parametrize("kind", ["mixed", "code", "list"])
def test_the_end_of_a_long_answer_costs_what_its_beginning_does(kind: str) -> None:
    text = {
        "mixed": answer_of_4k_tokens,
        "code": lambda: "```python\n" + "".join(f"x{n} = call({n})\n" for n in range(500)),
        "list": lambda: "".join(f"1. {words(9, n)}\n" for n in range(130)),
    }[kind]()
    costs: list[tuple[int, int]] = []

    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(80, 24)):
            answer, before = app.answer, (0, 0)
            for begin in range(0, len(text), 2000):  # 500 tokens
                for at in range(begin, min(begin + 2000, len(text)), 200):
                    await answer.add(text[at : at + 200])
                now = (answer.n_mounted, answer.n_updates)
                costs.append((now[0] - before[0], now[1] - before[1]))
                before = now
            await answer.end()
            assert answer.source == text
            n_leaves = sum(len(each.items) - each.FIRST for each in answer.query(Passage))
            n_leaves += sum(len(each.items) - each.FIRST for each in answer.query(CodeBlock))
            assert n_leaves <= answer.n_mounted, "what was finished was shown once"

    asyncio.run(run())
    n_pieces = 10
    whole = costs[: len(text) // 2000]
    assert all(updates <= n_pieces for _, updates in whole), "at most one update a drawing"
    mounted = [mounts for mounts, _ in whole]
    assert max(mounted[1:]) <= 2 * max(mounted[0], 5), mounted


def screen(app: App[None]) -> list[str]:
    return [strip.text for strip in app.screen._compositor.render_strips()]


async def shown_at_once(text: str, *, ended: bool) -> list[str]:
    app = Shown()
    app.answer = Answer(text, ended=ended)
    async with app.run_test(size=(60, 250)) as pilot:
        await pilot.pause()
        return screen(app)


def test_a_sheet_that_is_measured_between_two_changes_gets_its_room() -> None:
    async def run() -> None:
        inner = Sheet([Part(Content("a"))])
        outer = Sheet([inner])
        app = Shown()
        async with app.run_test(size=(20, 40)) as pilot:
            await app.mount(outer)
            await outer.mount(inner)
            await pilot.pause()
            assert inner.size.height == 1
            inner.put(1, Part(Content("b")))
            outer.refresh(layout=True)
            assert [each.height for each in outer.placed(20)] == [2]
            inner.put(2, Part(Content("c")))
            await pilot.pause()
            assert (inner.size.height, outer.size.height) == (3, 3)

    asyncio.run(run())


def test_an_answer_that_grew_looks_as_if_it_came_at_once() -> None:
    text = SAMPLE + answer_of_4k_tokens()[:8000]

    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(60, 250)) as pilot:
            for at in range(0, len(text), 41):
                await app.answer.add(text[at : at + 41])
                if at % 5 == 0:
                    await pilot.pause()
                    assert screen(app) == await shown_at_once(text[: at + 41], ended=False)
            await app.answer.end()
            await pilot.pause()
            wanted = screen(app)
            assert wanted == await shown_at_once(text, ended=True)
            n_blocks = len(app.answer.query(CodeBlock))
            assert 2 * n_blocks <= len(app.answer.children) <= 2 * n_blocks + 1, "few widgets"
            await app.answer.go_on()
            await pilot.pause()
            assert screen(app) == wanted

    asyncio.run(run())


def test_a_draw_of_a_long_answer_makes_as_few_lines_and_boxes_as_one_of_a_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_boxes = 0
    box = Widget._get_box_model
    measure = Hanging.get_height

    def counted_box(self: Widget, *args: Any, **more: Any) -> Any:
        nonlocal n_boxes
        n_boxes += 1
        return box(self, *args, **more)

    def counted_measure(self: Hanging, *args: Any) -> int:
        nonlocal n_boxes
        n_boxes += 1
        return measure(self, *args)

    monkeypatch.setattr(Widget, "_get_box_model", counted_box)
    monkeypatch.setattr(Hanging, "get_height", counted_measure)
    text = answer_of_4k_tokens()
    lines: list[int] = []
    boxes: list[int] = []

    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(80, 24)) as pilot:
            app.query_one(VerticalScroll).anchor()
            n_drawn = 0
            for at in range(0, len(text), 200):
                before = n_boxes
                await app.answer.add(text[at : at + 200])
                await pilot.pause()
                boxes.append(n_boxes - before)
                drawn = sum(each.n_drawn for each in app.query(Sheet))
                lines.append(drawn - n_drawn)
                n_drawn = drawn

    asyncio.run(run())
    tenth = len(lines) // 10
    assert all(lines) and all(boxes)
    for counts in (lines, boxes):
        assert sum(counts[-tenth:]) <= 1.5 * sum(counts[tenth : 2 * tenth]), counts


def test_text_of_an_answer_can_be_selected() -> None:
    text = (
        "A *first* line that is long enough to be wrapped here.\n\n- one\n- two\n\n```\nx = 1\n```"
    )

    async def run() -> None:
        app = Shown()
        app.answer = Answer(text, ended=True)
        async with app.run_test(size=(30, 24)) as pilot:
            await pilot.pause()
            app.screen.text_select_all()
            await pilot.pause()
            wanted = (
                "A first line that is long enough to be wrapped here.\n\none\ntwo\n"
                "code  copy  save\nx = 1"
            )
            assert app.screen.get_selected_text() == wanted
            app.screen.clear_selection()
            begin, end = (2, 4), (4, 4)
            assert screen(app)[4].startswith("• two")
            await pilot.mouse_down(offset=begin)
            await pilot.hover(offset=end)
            await pilot.mouse_up(offset=end)
            await pilot.pause()
            assert app.screen.get_selected_text() == "two"
            drawn = app.screen._compositor.render_strips()[4]
            plain = drawn._segments[0].style
            marked = [
                x.text for x in drawn if plain and x.style and x.style.bgcolor != plain.bgcolor
            ]
            assert marked == ["two"]

    asyncio.run(run())


def test_highlighted_code_is_the_whole_block_at_its_end(tmp_path: Path) -> None:
    lines = [f"x{n} = '''" if n % 50 == 0 else f"y{n} = {n}" for n in range(100)]
    code = "\n".join(lines)

    async def run() -> None:
        app = Shown()
        async with app.run_test() as pilot:
            for at in range(0, len(code), 100):
                await app.answer.add(("```python\n" if at == 0 else "") + code[at : at + 100])
            await app.answer.add("\n```\n")
            await pilot.pause()
            block = app.answer.query_one(CodeBlock)
            assert block.closed and block.code == code + "\n" and block.language == "python"
            pieces = [str(each.visual) for each in block.items[1:] if isinstance(each, Part)]
            assert len(pieces) == 3 and "\n".join(pieces) == code

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 100])
def test_code_is_shown_escaped_and_copied_exactly(size: int) -> None:
    code = "a = '\x1b[0m' # \\x1b\u2028\x0b\nb\rc\n"
    text = f"```python\n{code}```\n&#x202e; &rlm; &#13;x\n\n```\n\r\x0c".replace("\n", "\r\n")

    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(100, 24)) as pilot:
            for at in range(0, len(text), size):
                await app.answer.add(text[at : at + size])
            await app.answer.end()
            await pilot.pause()
            first, second = app.answer.query(CodeBlock)
            assert (first.code, first.language, second.code) == (code, "python", "\r\x0c\n")
            assert app.answer.source == text
            shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
            assert not BAD.search(shown.replace("\n", "")) and "\u2028" not in shown
            for each in (r"\x1b[0m' # \x1b\u2028\x0b", r"b\x0dc", r"\u202e \u200f \x0dx", r"\x0c"):
                assert each in shown
            assert shown.count(r"\x0d") == 3 and "python  copy  save" in shown

    asyncio.run(run())


@pytest.mark.parametrize("size", [1000, 100_000])
def test_code_of_one_long_line_is_copied_as_one(size: int) -> None:
    code = "x" * (2 * LONG + 10) + "\n" + "y\n" * (2 * CODE_LINES)

    async def run() -> None:
        app = Shown()
        async with app.run_test():
            text = f"```\n{code}```\n"
            for at in range(0, len(text), size):
                await app.answer.add(text[at : at + size])
            await app.answer.end()
            assert app.answer.query_one(CodeBlock).code == code

    asyncio.run(run())


def test_words_of_reasoning_are_counted_as_they_come() -> None:
    text = " One two\nthree, four  five. "
    whole, by_letter = Reasoning(text), Reasoning()
    for letter in text:
        by_letter._count(letter)
    assert whole.title == by_letter._words() == "Thought, 5 words"


def test_control_characters_never_reach_the_screen() -> None:
    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(100, 24)) as pilot:
            for text in ("bell \x07 ", "\x1b[31m", "red \u202e bidi", "\n\n```\n\x1b]0;x\x07\n```"):
                await app.answer.add(text)
            await pilot.pause()
            shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
            assert not set(shown) & set("\x07\x1b\u202e")
            assert "\\x1b[31m" in shown and "\\u202e" in shown

    asyncio.run(run())
