"""Terminals of other kinds, encodings and colours: the program starts, answers and ends, and what
it says can be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from stand_ins import tmux
from stand_ins.command_line import RUN_CLI
from stand_ins.openai_server import DONE, delta, head, scripted
from stand_ins.tmux import Tmux

pytestmark = pytest.mark.skipif(not tmux.IS_HERE, reason="tmux is not installed")

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
KINDS: dict[str, dict[str, str]] = {
    "xterm": {"TERM": "xterm"},
    "screen": {"TERM": "screen"},
    "linux": {"TERM": "linux"},
    "vt100": {"TERM": "vt100"},
    "no colour": {"NO_COLOR": "1"},
    "no locale": {"LC_ALL": "", "LANG": ""},
    "C": {"LC_ALL": "C"},
    "ascii": ASCII,
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
}


def program(env: dict[str, str]) -> list[str]:
    """With variables that tmux would set itself."""
    return [
        "env",
        *(f"{name}={value}" for name, value in env.items()),
        sys.executable,
        str(RUN_CLI),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_answers_and_ends(tmp_path: Path, kind: str) -> None:
    home, env = tmp_path / "home", KINDS[kind]
    answer = [head(), delta(content="Water, gefr\u00f6ren \u2192 \u51b0 ends."), DONE]
    listed = head("200 OK", "application/json") + b'{"data": [{"id": "far"}]}'
    with (
        scripted([answer], listed) as script,
        Tmux(
            home, "chat", "--url", script.url, columns=80, lines=24, program=program(env)
        ) as terminal,
    ):
        terminal.until("Ask anything", "New chat", "far", "f1 Help")
        terminal.type("What is ice?")
        terminal.keys("Enter")
        terminal.until("Water, gefr", "ends.", "What is ice?")
        screen = terminal.screen()
        assert "\\u" not in screen and "\\x" not in screen
        if env is not ASCII and kind != "latin-1":
            assert "Water, gefr\u00f6ren \u2192 \u51b0 ends." in screen
        terminal.keys("C-q")
        assert terminal.exit_code() == 0, terminal.screen()


def test_a_terminal_that_places_no_text_is_refused(tmp_path: Path) -> None:
    with Tmux(tmp_path / "home", "chat", program=program({"TERM": "dumb"})) as terminal:
        assert terminal.exit_code() == 2
        terminal.until("TERM is dumb", "localllm run NAME --plain")
