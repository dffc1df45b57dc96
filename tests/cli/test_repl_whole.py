"""The prompt over the real session: what is cached, stopped, recorded and given again."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins.command_line import cli

pytest.importorskip("pexpect")
pytest.importorskip("pyte")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")

from stand_ins.terminal_screen import Terminal  # noqa: E402

REAL = {"TEST_FAKE_SESSION": ""}
_FOOTER = re.compile(r"(?:([\d,]+) of )?([\d,]+) prompt tokens?(?: from cache)?, first token")


def counts(raw: str) -> tuple[int, int]:
    """(cached, all) prompt tokens of the footer."""
    found = _FOOTER.search(raw)
    assert found is not None, raw
    cached, total = (int((each or "0").replace(",", "")) for each in found.groups())
    return cached, total


def test_a_conversation(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    path = str(real_model("smollm2:135m"))
    essay = tmp_path / "essay.txt"
    essay.write_text("The quick brown fox jumps over the lazy dog. " * 600)
    options = ("--seed=3", "--max-tokens=16")
    with Terminal(tmp_path, "run", *options, path, columns=200, cwd=tmp_path, **REAL) as t:
        cached, first = counts(t.enter("Name three colours."))
        assert cached == 0
        cached, second = counts(t.enter("And two more?"))
        # All of the first turn but the last token of its answer, which was never computed.
        assert first + 10 <= cached < second
        # Stopped in the prefill: the conversation before it is still cached.
        t.until_prompt()
        n = t.prompts
        t.type("Sum up @essay.txt\r")
        t.until("reading the prompt: ")
        began = time.monotonic()
        t.type("\x03")
        t.until_prompt(n + 1)
        assert time.monotonic() - began < 25
        assert "before anything came" in t.text
        cached, third = counts(t.enter("\x15Hello."))
        assert second <= cached < third < second + 100
        # Stopped while decoding: the rest of the conversation goes on from there.
        t.enter("/set max_tokens default")
        t.enter("/set ignore_eos true")
        n, begin = t.prompts, len(t.raw)
        t.type("Tell me a story.\r")
        t.until(lambda: len(t.raw) > begin + 400)
        t.type("\x03")
        t.until_prompt(n + 1)
        assert "stopped, what is there stays in the conversation" in t.text
        t.enter("/set max_tokens 8")
        cached, fourth = counts(t.enter("Go on."))
        assert third + 20 < cached < fourth
        t.type("\x04")
        assert t.finish() == 0
    records = sorted((tmp_path / "answers").glob("*.json"), key=lambda each: each.stat().st_mtime)
    assert len(records) == 5
    for record in records[-2:]:  # one of them was stopped
        done = cli("replay", record.stem, home=tmp_path, env=REAL)
        assert done.returncode == 0 and "identical" in done.stdout + done.stderr, done.stderr


def test_context_that_is_full(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    path = str(real_model("smollm2:135m"))
    with Terminal(tmp_path, "run", "--ctx=64", path, columns=200, **REAL) as t:
        t.enter("/set ignore_eos true")
        raw = t.enter("Hello.")
        assert "the context of 64 tokens is full: /clear" in raw and "--ctx N" in raw
        assert "and the context holds 64" in t.enter("Go on.")
        assert t.screen.display[t.screen.cursor.y].rstrip() == ">>>"
        t.enter("/clear")
        assert counts(t.enter("Hello."))[0] == 0
