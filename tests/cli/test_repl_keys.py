"""The prompt as a person at a terminal treats it: keys, pastes, history, resizing, signals."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import stat
import termios
import time
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.conditions import wait

pytest.importorskip("pexpect")
pytest.importorskip("pyte")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")

from stand_ins.terminal_screen import Terminal  # noqa: E402

UP, TAB = "\x1b[A", "\t"


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def last_content(raw: str) -> str:
    """The question that the fake session repeated."""
    found = json.loads(raw[raw.index("{") : raw.rindex("}") + 1])
    return str(found["messages"][-1]["content"])


def modes(t: Terminal) -> int:
    """Whether the terminal gathers lines and shows what is typed."""
    return int(termios.tcgetattr(t.child.child_fd)[3] & (termios.ICANON | termios.ECHO))


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def test_history_over_two_runs(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        t.enter("say first")
        t.enter("one\x1b\rtwo \x1b\r")
        t.enter("/set nohistory")
        t.enter("say secret")
    file = tmp_path / "history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secret" not in file.read_text()
    with file.open("ab") as damaged:
        damaged.write(b'\xff{"\n[1]\n"\\ud800 say half"\n')
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type(UP * 10)
        t.until(">>> say first")
        t.enter()
        assert "first\r\n" in t.raw
    with Terminal(tmp_path, "run", model, LOCALLLM_NO_HISTORY="1") as t:
        before = file.read_bytes()
        t.until_prompt()
        t.type(UP * 3)
        t.enter("say x")
        assert "LOCALLLM_NO_HISTORY is set" in t.enter("/set history")
        t.enter("say y")
        assert file.read_bytes() == before


def test_paste_of_a_megabyte(model: str, tmp_path: Path) -> None:
    text = "".join(f"line {i} of what was pasted\n" for i in range(38_000))
    assert len(text) > 1_000_000
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type("digest ")
        t.until("digest")
        began = time.monotonic()
        t.type("\x1b[200~")
        # A terminal takes no more than the program reads: what comes back must be read meanwhile.
        for at in range(0, len(text), 32768):
            t.type(text[at : at + 32768])
            t.pump(0)
        t.type("\x1b[201~")
        t.until("[pasted 1.1 MB]")
        assert time.monotonic() - began < 30
        assert len(t.raw) < 20_000  # what is pasted is not drawn
        whole = text + "what is it?"
        answer = t.enter("what is it?")
        assert f"{len(whole)} {hashlib.sha256(whole.encode()).hexdigest()}" in answer


def test_paste_is_editable(model: str, tmp_path: Path) -> None:
    long = "x" * 5000
    with Terminal(tmp_path, "run", model, columns=120) as t:
        assert last_content(t.enter(paste("short\r\ntext"))) == "short\ntext"
        assert last_content(t.enter(paste(long) + "?")) == long + "?"
        assert ">>> [pasted 5.0 kB]?" in t.text
        assert last_content(t.enter(paste("y" * 5000) + paste(long))) == "y" * 5000 + long
        assert ">>> [pasted 5.0 kB, 2][pasted 5.0 kB]" in t.text
        assert last_content(t.enter(paste(long) + "\x7fgone")) == "gone"  # one backspace
        t.until_prompt()
        t.type(UP * 3)
        assert last_content(t.enter()) == long + "?"


def test_completion(model: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "some folder").mkdir(parents=True)
    (work / "some folder" / "notes.txt").write_text("it is noted")
    (work / "plain.txt").write_text("it is plain")
    with Terminal(tmp_path, "run", model, cwd=work, columns=120) as t:
        t.until_prompt()
        t.type("/reg" + TAB)
        t.until(">>> /regenerate")
        t.enter("\x15")
        t.type("/set dry_b" + TAB)
        t.until(">>> /set dry_base")
        t.enter("\x15")
        t.type("/sho" + TAB)
        t.until(">>> /show")
        t.type(" lic" + TAB)
        t.until(">>> /show license")
        t.enter("\x15")
        t.type("see @pl" + TAB)
        t.until(">>> see @plain.txt")
        assert "it is plain" in last_content(t.enter())
        t.type("see @so" + TAB)
        t.until('>>> see @"some folder/')
        t.type("n" + TAB)
        t.until('>>> see @"some folder/notes.txt"')
        assert "it is noted" in last_content(t.enter())


def test_ctrl_c_and_ctrl_d(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type("never sent")
        t.until("never sent")
        t.type("\x03")
        t.until_prompt(2)
        assert t.screen.display[t.screen.cursor.y].rstrip() == ">>>"
        t.type("\x03")
        t.until_prompt(3)
        assert "To leave" not in t.text
        t.type("\x03")
        t.until_prompt(4)
        assert "To leave: /bye, or Ctrl-D." in t.text
        t.type("abc\x04")  # deletes forward: nothing there
        assert last_content(t.enter("d")) == "abcd"
        t.type("\x04")
        assert t.finish() == 0
        assert "Traceback" not in t.raw and "never sent" not in (tmp_path / "history").read_text()


def test_ctrl_c_stops_only_the_answer(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type("count 100000\r")
        t.until(" 5 6 ")
        t.type("\x03")
        t.until_prompt(2)
        assert "note: stopped; " in t.text or "note: stopped, what is there" in t.text
        turn = t.enter("and?")
        found = json.loads(turn[turn.index("{") : turn.rindex("}") + 1])["messages"]
        assert found[1]["role"] == "assistant" and found[1]["content"].startswith("0 1 2 3 ")
        # In a prefill, with its line of progress.
        t.type("prefill 60\r")
        t.until("reading the prompt: ")
        t.type("\x03\x03\x03")
        t.until(lambda: t.prompts >= 4)
        t.until_prompt(4)
        assert "before anything came" in t.text and "reading the prompt" not in t.text
        assert t.screen.display[t.screen.cursor.y].rstrip() == ">>>"
        t.type("\x1b[A")
        t.until(">>> prefill 60")
        t.enter("\x15")
        # In one long native call, which ends by itself.
        t.type("block 2\r")
        for _ in range(3):
            time.sleep(0.3)
            t.type("\x03")
        t.until_prompt(6)
        assert t.child.isalive()


def test_ctrl_c_while_loading(tmp_path: Path) -> None:
    slow = tmp_path / "slow.gguf"
    slow.write_bytes(b"x")
    with Terminal(tmp_path, "run", str(slow)) as t:
        t.until("loading")
        wait((tmp_path / "busy").exists)
        t.type("\x03")
        assert t.finish() == 130
        assert "Traceback" not in t.raw


def test_typing_during_an_answer(model: str, tmp_path: Path) -> None:
    """It is not mixed into the text, and is there at the next prompt."""
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type("count 300\r")
        t.until(" 5 6 ")
        t.type("say later")
        t.until_prompt(2)
        t.until(">>> say later")
        assert t.text.count("later") == 1
        assert "later\r\n" in t.enter()


def test_resize(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type("say half a line of ")
        t.until("half a line of")
        t.resize(30, 40)
        t.pump(0.3)
        t.type("words")
        t.until("half a line of words")
        t.enter()
        t.type("count 400\r")
        t.until(" 9 10 ")
        for columns in (20, 100, 60):
            t.resize(24, columns)
            t.pump(0.1)
        t.until_prompt(3)
        assert "398 399" in t.raw and "Traceback" not in t.raw
        assert "ok\r\n" in t.enter("say ok")
        t.type("think 1000\r")
        t.until("thinking…")
        t.resize(24, 20)
        t.until_prompt(5)
        assert "thinking…" not in t.screen.display[t.screen.cursor.y - 1]


def test_narrow_screen(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model, columns=20, lines=100) as t:
        raw = t.enter("think 200")
        assert all(len(line) < 20 for line in raw.split("\r\x1b[K") if line.startswith("thinking"))
        t.enter("say " + "wide " * 20)
        help_ = t.enter("/help")
        assert "  /regenerate [SEED]\r\n" in help_
        t.type("a" * 50)
        t.until("a" * 10)
        assert last_content(t.enter()) == "a" * 50


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_restore_the_terminal(model: str, tmp_path: Path, number: signal.Signals) -> None:
    with Terminal(tmp_path, "run", model) as t:
        usual = modes(t)
        t.until_prompt()
        assert usual == termios.ICANON | termios.ECHO and modes(t) == 0
        os.kill(t.child.pid, number)
        while t.pump(0.05):
            pass
        assert modes(t) == usual
        assert t.raw.endswith("\x1b[?2004l\r\n")  # a paste is plain text again
        assert t.finish() == -number
        assert "Traceback" not in t.raw


def test_sigterm_in_an_answer(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        t.type("count 100000\r")
        t.until(" 5 6 ")
        assert modes(t) == termios.ICANON  # what is typed is not mixed into the answer
        os.kill(t.child.pid, signal.SIGTERM)
        while t.pump(0.05):
            pass
        assert modes(t) == termios.ICANON | termios.ECHO
        assert t.finish() == -signal.SIGTERM
        assert "Traceback" not in t.raw


def test_hang_up(model: str, tmp_path: Path) -> None:
    """The terminal is gone, at the prompt and in an answer: the program ends."""
    for words in ("", "count 100000\r"):
        with Terminal(tmp_path, "run", model) as t:
            t.until_prompt()
            if words:
                t.type(words)
                t.until(" 5 6 ")
            pid = t.child.pid
            t.child.ptyproc.fileobj.close()
            t.child.ptyproc.closed = t.child.closed = True
            t.child.ptyproc.terminated = t.child.terminated = True
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                done, _ = os.waitpid(pid, os.WNOHANG)
                if done:
                    break
                time.sleep(0.02)
            assert done == pid


def test_no_colours(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model, NO_COLOR="1") as t:
        t.enter("think 50")
        t.enter("/zzz")
        t.type("/s" + TAB + TAB)
        t.until("/stats")
        plain = t.screen.default_char
        for row in t.screen.buffer.values():
            for character in row.values():
                assert (character.fg, character.bg) == (plain.fg, plain.bg)
        assert "\x1b[2m" not in t.raw and "\x1b[31" not in t.raw


def test_history_that_cannot_be_kept(model: str, tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "answers").write_text("in the way")
    (tmp_path / "conversations").write_text("in the way")
    with Terminal(tmp_path, "run", model, columns=300) as t:
        raw = t.enter("say x") + t.enter("say x")
        assert raw.count("note: what is typed is not kept in ") == 1
        assert raw.count("note: the answers have no records for replay") == 1
        assert " cannot write " in t.enter("/save talk")
        assert "x\r\n" in t.enter("say x")


def test_words_stay_whole(model: str, tmp_path: Path) -> None:
    words = ["seven"] * 40
    with Terminal(tmp_path, "run", model, columns=23, wraps=True) as t:
        t.enter("say " + " ".join(words))
        answer = [line for line in t.lines if line.startswith("seven")][-14:]
        assert answer == ["seven seven seven"] * 13 + ["seven"]


def test_our_own_lines_keep_their_words_whole(model: str, tmp_path: Path) -> None:
    """The banner, help, errors and their hints, and what commands say."""
    with Terminal(tmp_path, "run", "m.gguf", cwd=tmp_path, columns=40, wraps=True) as t:
        t.enter("reason " + "considering " * 9 + "|so")
        begin = len(t.lines)
        for line in ("/help", "/help set", "/think show", "/set temperature", "/zzz", "/load nope",
                     "/load ./nothere/at/all.gguf"):  # fmt: skip
            t.enter(line)
        full = [line for line in t.lines[begin:] if len(line) == 40]
        assert full == []
        assert "considering considering considering" in t.lines
        assert re.search(r"m\.gguf, Fake F32\. /help lists the\ncommands, /bye leaves\.", t.text)
        t.enter("/set nowordwrap")
        t.enter("/help set")
        assert any(len(line) == 40 for line in t.lines)
        t.enter("/set wordwrap")
        assert "sev\x1b[3D\x1b[K\r\nseven " in t.enter("say " + "seven " * 8)


def test_ctrl_c_stops_the_load_of_another_model(model: str, tmp_path: Path) -> None:
    (tmp_path / "gradual.gguf").write_bytes(Path(model).read_bytes())
    with Terminal(tmp_path, "run", model, cwd=tmp_path, columns=120) as t:
        t.enter("say one")
        t.until_prompt()
        t.type("/load ./gradual.gguf\r")
        t.until("loading ./gradual.gguf  60%")
        t.type("\x03")
        t.until("loading ./gradual.gguf was stopped")
        raw = t.enter("two")
        assert [
            m["content"] for m in json.loads(raw[raw.index("{") : raw.rindex("}") + 1])["messages"]
        ] == ["say one", "one", "two"]
