"""The program on the other side of a real ssh connection, which is also cut."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_ins import sshd, tmux
from stand_ins.command_line import ROOT, RUN_CLI
from stand_ins.openai_server import delta, head, scripted
from stand_ins.sshd import Sshd
from stand_ins.tmux import Tmux

pytestmark = [
    pytest.mark.skipif(not tmux.IS_HERE, reason="tmux is not installed"),
    pytest.mark.skipif(not sshd.IS_HERE, reason="openssh-server is not installed"),
]

ASK = "Ask anything"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd") / "of-us") as running:
        yield running


def far(server: Sshd, home: Path, *args: str) -> Tmux:
    """`localllm` over ssh."""
    home.mkdir(exist_ok=True)
    env = {"LOCALLLM_HOME": str(home), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    program = server.command([sys.executable, str(RUN_CLI), *args], home, env)
    return Tmux(home, program=program)


def ask(terminal: Tmux, text: str) -> None:
    terminal.until(ASK)
    terminal.type(text)
    terminal.until(text)
    terminal.keys("Enter")


def said(home: Path) -> list[str]:
    with sqlite3.connect(home / "conversations.sqlite") as file:
        return [text for (text,) in file.execute("select content from messages order by id")]


def drafts(home: Path) -> list[str]:
    with sqlite3.connect(home / "conversations.sqlite") as file:
        return [text for (text,) in file.execute("select draft from conversations") if text]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_conversation_over_ssh(
    server: Sshd, tmp_path: Path, tiny: Callable[[str, str], Path]
) -> None:
    home, model = tmp_path / "home", str(tiny("llama", "Q4_0"))
    args = ("chat", model, "--max-tokens", "8", "--ctx", "512", "--ignore-eos")
    with far(server, home, *args) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("8 tokens")
        terminal.resize(60, 20)
        terminal.until(lambda: terminal.lines()[-1].startswith("f1 Help ^n New chat"))
        terminal.resize(120, 40)
        terminal.until("Filter: words, #tag", "^p palette")
        terminal.keys("C-f")
        terminal.until("Words of a message")
        terminal.keys("Escape")
        ask(terminal, "And what is snow?")
        terminal.until(lambda: terminal.screen().count("8 tokens") == 2)
        terminal.keys("C-q")
        assert terminal.exit_code() == 0, terminal.screen()
    assert said(home)[::2] == ["What is ice?", "And what is snow?"] and all(said(home))


def test_a_connection_that_is_cut_loses_nothing(server: Sshd, tmp_path: Path) -> None:
    home, never = tmp_path / "home", threading.Event()
    parts = [head(), delta(content="The beginning"), never]
    listed = head("200 OK", "application/json") + b'{"data": [{"id": "far"}]}'
    with (
        scripted([parts], listed) as script,
        far(server, home, "chat", "--url", script.url) as terminal,
    ):
        ask(terminal, "What is ice?")
        terminal.until("The beginning")
        terminal.type("not sent yet")
        terminal.until("not sent yet")
        pid = int((home / "remote-pid").read_text())
        assert runs(pid)
        os.kill(terminal.pid, signal.SIGKILL)  # ssh, not the program
        terminal.until(lambda: not runs(pid))
    assert said(home) == ["What is ice?", "The beginning"]
    assert drafts(home) == ["not sent yet"]
