"""Text that this program did not write never drives the terminal, wherever it is shown."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.nasty import ALL, BAD, NASTY

pytest.importorskip("pexpect")
pytest.importorskip("pyte")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")

from stand_ins.terminal_screen import Terminal  # noqa: E402

#: What our own program and its line editor may write.
_OURS = re.compile(r"\x1b\[(?:\?(?:2004|25|1|7|12)[hl]|[0-9]*[ABCDJK]|0m|2m|1m|31;1m|[0-9;]*[Hm])")


def as_words(text: str) -> str:
    """The text in the escapes that the fake session reads."""
    return text.encode("unicode_escape").decode()


def clean(t: Terminal) -> None:
    """Nothing reached the terminal but text and our own sequences; no title, no foreign screen."""
    rest = _OURS.sub("", t.raw)
    assert not (found := BAD.search(rest)), rest[max(found.start() - 60, 0) : found.end() + 20]
    assert t.screen.title == ""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def test_answers_reasoning_and_notes(model: str, tmp_path: Path) -> None:
    env = dict.fromkeys(("TEST_NOTICE", "TEST_DESCRIPTION"), ALL.replace("\0", ""))
    with Terminal(tmp_path, "run", model, columns=200, lines=60, **env) as t:
        for nasty in NASTY:
            words = as_words(nasty)
            t.enter(f"say {words}")
            t.enter(f"reason {words}|{words}")
            t.enter(f"note {words}")
        t.enter(f"chars {as_words(ALL)}")  # every sequence is split over chunks
        t.enter("/think show")
        t.enter(f"reason {as_words(ALL)}|so")
        for command in ("/show info", "/stats", "/set verbose", "say x"):
            t.enter(command)
        clean(t)
        assert "\\x1b]0;OWNED\\x07" in t.text and "\\u202edcba" in t.text


def test_errors_and_names(model: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    name = "evil\x1b]0;OWNED\x07\u202e.txt"
    (work / name).write_text(ALL)
    folder = tmp_path / "conversations"
    folder.mkdir()
    saved = {
        "version": 1, "saved": ALL, "model": ALL, "digest": None, "system": ALL, "think": None,
        "params": {"stop": [ALL[:900]]},
        "messages": [{"role": "user", "content": ALL},
                     {"role": "assistant", "content": ALL, "reasoning_content": ALL}],
    }  # fmt: skip
    (folder / "talk.json").write_text(json.dumps(saved))
    (folder / "evil\x1b]0;OWNED\x07.json").write_text("{")
    (folder / "broken.json").write_text(json.dumps({"version": ALL}))
    with Terminal(tmp_path, "run", model, columns=200, lines=60, cwd=work) as t:
        for line in (
            "refuse", "\x15", "/load talk", "/show system", "/show parameters", "/think show",
            "/load broken", "/load ev", "/load", "read @evil", "\x15", f"@{name[:4]}\t\t",
        ):  # fmt: skip
            t.enter(line)
        t.enter("\x15")
        clean(t)
        assert "messages of talk" in t.text and "\\x1b]0;OWNED" in t.text


def test_what_is_typed_pasted_or_recalled(model: str, tmp_path: Path) -> None:
    (tmp_path / "history").write_text("".join(json.dumps(text) + "\n" for text in NASTY))
    with Terminal(tmp_path, "run", model, columns=200, lines=60) as t:
        t.until_prompt()
        for _ in NASTY:
            t.type("\x1b[A")
            t.pump(0.05)
        t.enter("\x15")
        paste = ALL.replace("\x1b[201~", "")
        t.type(f"\x1b[200~{paste}\x1b[201~")
        t.until("dcba")
        n = len(t.raw)
        t.enter()
        content = json.loads(t.raw[t.raw.index('{"messages', n) :].split("\r\n")[0])["messages"]
        assert content[-1]["content"] == paste.replace("\r", "\n")  # sent as it is
        t.enter("/\u202eset \x16\x1b[31m")
        clean(t)


def test_a_title_is_not_taken_from_arguments(tmp_path: Path) -> None:
    path = tmp_path / "m\x1b]0;OWNED\x07\u202e.gguf"
    path.write_bytes(small_models.gguf())
    with Terminal(tmp_path, "run", str(path), columns=200) as t:
        t.enter("/show info")
        t.enter("/set verbose")
        t.enter("say x")
        clean(t)


def test_long_lines_and_many_lines(model: str, tmp_path: Path) -> None:
    """1 MB in one line and 20,000 lines leave the screen as it would be without them."""
    with Terminal(tmp_path, "run", model, draws=False) as t:
        t.until(lambda: t.prompts == 1)
        began = time.monotonic()
        t.type("wide 1000000\r")
        t.until(lambda: t.prompts == 2)
        t.type("lines 20000\r")
        t.until(lambda: t.prompts == 3, seconds=60)
        seconds = time.monotonic() - began
        assert "x" * 1_000_000 + "\r\n" in t.raw and "line 19999\r\n" in t.raw
        assert seconds < 10  # 10,000 lines a second take 2
        t.type("say still here\r")
        t.until(lambda: t.prompts == 4)
        assert "still here\r\n" in t.raw[-400:]


def test_wide_reasoning_stays_on_its_line(model: str, tmp_path: Path) -> None:
    """Characters of two columns would wrap a line that was cut by their number."""
    with Terminal(tmp_path, "run", model, columns=40) as t:
        t.enter(f"reason {as_words('思考' * 300)}|{as_words('好')}")
        assert "thinking…" not in t.text and "思" not in t.text
        assert "thought for" in t.text and "好" in t.text
