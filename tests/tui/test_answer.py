"""Markdown that grows: the leaves are those of the whole text, and little is drawn anew."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from stand_ins.nasty import BAD
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll

from localllm.tui.leaves import CODE_LINES, LONG, Leaf, Reader, leaves_of
from localllm.tui.widgets.answer import Answer, CodeBlock, LeafView
from localllm.tui.widgets.message import Reasoning

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
    CSS = "Answer { height: auto; } .apart { margin-top: 1; }"

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
            n_leaves = len(answer.query(LeafView)) + len(answer.query(CodeBlock))
            assert n_leaves <= answer.n_mounted, "what was finished was mounted once"

    asyncio.run(run())
    n_pieces = 10
    whole = costs[: len(text) // 2000]
    assert all(updates <= n_pieces for _, updates in whole), "at most one update a drawing"
    mounted = [mounts for mounts, _ in whole]
    assert max(mounted[1:]) <= 2 * max(mounted[0], 5), mounted


def test_an_answer_has_few_widgets_and_looks_as_if_it_had_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not shown costs time too, whenever a layout is made."""
    text = SAMPLE + answer_of_4k_tokens()[:8000]

    def screen(app: Shown) -> list[str]:
        return [strip.text for strip in app.screen._compositor.render_strips()]

    async def keep_all(self: Answer, runs: object) -> None:
        pass

    async def grow(app: Shown) -> list[list[str]]:
        screens = []
        async with app.run_test(size=(60, 250)) as pilot:
            for at in range(0, len(text), 200):
                await app.answer.add(text[at : at + 200])
                await pilot.pause()
                screens.append(screen(app))
            n_widgets.append(len(app.answer.children))
        return screens

    n_widgets: list[int] = []

    async def run() -> None:
        app, at_once = Shown(), Shown()
        with monkeypatch.context() as patched:
            patched.setattr(Answer, "_join", keep_all)
            screens = await grow(Shown())
        assert await grow(Shown()) == screens
        assert n_widgets[0] > 90 and n_widgets[1] < 45
        wanted = screens[-1]
        async with app.run_test(size=(60, 250)) as pilot:
            await app.answer.add(text)
            await pilot.pause()
            assert screen(app) == wanted and len(app.answer.children) < 40
            await app.answer.end()
            await pilot.pause()
            assert screen(app) == wanted and len(app.answer.children) < 40
            await app.answer.go_on()
            await pilot.pause()
            assert screen(app) == wanted
        at_once.answer = Answer(text, ended=True)
        async with at_once.run_test(size=(60, 250)) as pilot:
            await pilot.pause()
            assert screen(at_once) == wanted
            assert at_once.answer.n_mounted == len(at_once.answer.children) < 40

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
            pieces = [str(view.render()) for view in block.query(".code-piece")]
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
