"""The program inside tmux: from the first start to its end, and what goes wrong on the way."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_ins import small_models, tmux
from stand_ins.index_server import IndexServer
from stand_ins.openai_server import DONE, Script, delta, event, head, scripted
from stand_ins.tmux import Tmux

pytestmark = pytest.mark.skipif(not tmux.IS_HERE, reason="tmux is not installed")

ASK = "Ask anything"
#: What would do harm if it reached the terminal as it is.
NASTY = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b]52;c;b3duZWQ=\x07\x07\x9b31m"
    "\u202egnp.\u2066 [bold red]x[/] [@click=app.quit]y[/] \r\x08\ud800"
)
SEEN = ("\\x1b", "\\x07", "\\u202e", "[bold red]x[/]", "[@click=app.quit]y[/]")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def model(tiny: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A file of its own, which may be deleted."""
    path = tmp_path / "teeny.gguf"
    path.write_bytes(tiny("llama", "Q4_0").read_bytes())
    return path


def of_address(home: Path, script: Script, *args: str, **more: str) -> Tmux:
    return Tmux(home, "chat", "--url", script.url, *args, **more)


def listing(*names: str) -> bytes:
    import json

    rows = {"data": [{"id": name} for name in names]}
    return head("200 OK", "application/json") + json.dumps(rows).encode()


def ask(terminal: Tmux, text: str) -> None:
    terminal.until(ASK)
    terminal.type(text)
    terminal.until(text)
    terminal.keys("Enter")


def said(home: Path) -> list[str]:
    """What is in the file of the conversations."""
    with sqlite3.connect(home / "conversations.sqlite") as file:
        return [text for (text,) in file.execute("select content from messages order by id")]


def n_ended(home: Path) -> int:
    """How many answers are whole there, with their figures."""
    with sqlite3.connect(home / "conversations.sqlite") as file:
        query = "select count(*) from messages where role = 'assistant' and finish_reason != ''"
        return int(file.execute(query).fetchone()[0])


def leave(terminal: Tmux) -> None:
    terminal.keys("C-q")
    assert terminal.exit_code() == 0, terminal.screen()


def test_from_the_first_start_to_the_end(
    home: Path, tmp_path: Path, tiny: Callable[[str, str], Path]
) -> None:
    made = small_models.make(tmp_path, content=tiny("llama", "Q4_0").read_bytes())
    env = {"TEST_CATALOG": str(made.catalog_folder), "PIP_NO_INDEX": "0"}
    args = ("chat", "--max-tokens", "24", "--ctx", "512", "--ignore-eos")
    with (
        IndexServer(tmp_path / "wheels") as index,
        Tmux(home, *args, PIP_INDEX_URL=index.url, **env) as terminal,
    ):
        terminal.until("to pull")  # no model is here, so it begins with the list of them
        terminal.keys("p")
        terminal.until("Pull it?")
        terminal.keys("y")
        terminal.until(lambda: re.search(r"madeup:1k +here", terminal.screen()) is not None)
        terminal.keys("Enter")
        terminal.until("New chat · madeup:1k")
        ask(terminal, "What is ice?")
        terminal.until("24 tokens")
        ask(terminal, "And what is snow?")
        terminal.until(lambda: terminal.screen().count("24 tokens") == 2)
        terminal.until(lambda: " cached" in " ".join(terminal.screen().split()))
        terminal.keys("C-s")
        terminal.until("Export to")
        terminal.until(".md")
        terminal.keys("Enter")
        terminal.gone("Export to")
        (written,) = home.rglob("*.md")
        assert "And what is snow?" in written.read_text()
        terminal.keys("C-n")
        terminal.until("New chat")
        terminal.keys("C-f")
        terminal.until("Words of a message")
        terminal.type("snow")
        terminal.until("you")
        terminal.keys("Enter")
        terminal.until("And what is snow?")
        leave(terminal)
        assert said(home)[::2] == ["What is ice?", "And what is snow?"]
        # The next start goes on with the model that was used last.
        terminal.start("chat", *args[1:])
        terminal.until("New chat · madeup:1k")
        leave(terminal)


def test_a_conversation_goes_on_after_kill_9(home: Path, model: Path) -> None:
    args = ("chat", str(model), "--max-tokens", "60", "--ctx", "512", "--ignore-eos")
    with Tmux(home, *args) as terminal:
        ask(terminal, "What is ice? " * 4)
        terminal.until("60 tokens")
        terminal.until(lambda: n_ended(home) == 1)
        terminal.until(lambda: any((home / "cache" / "kv").rglob("transcripts/*")))
        os.kill(terminal.pid, signal.SIGKILL)
        assert terminal.exit_code() == 128 + signal.SIGKILL
        terminal.start()
        terminal.until(ASK)
        terminal.keys("C-f")
        terminal.until("Words of a message")
        terminal.type("ice")
        terminal.until("you")
        terminal.keys("Enter")
        terminal.until("60 tokens")
        ask(terminal, "And snow?")
        # All but the new question comes from the disk: the first answer alone has 60 tokens.
        cached = re.compile("([0-9]+) cached")
        terminal.until(lambda: any(int(n) > 100 for n in cached.findall(terminal.screen())))
        leave(terminal)


def test_a_server_that_goes_in_mid_answer_costs_nothing(home: Path) -> None:
    cut = [head(), delta(content="The first half"), delta(content=" of it")]
    good = [head(), delta(content="All of it"), DONE]
    with scripted([cut, good], listing("far")) as script, of_address(home, script) as terminal:
        terminal.until("far")
        ask(terminal, "What is ice?")
        terminal.until("broke off its answer", "The first half of it")
        ask(terminal, "Once more, please")
        terminal.until("All of it")
        leave(terminal)
        texts = "\n".join(said(home))
    for text in ("What is ice?", "The first half of it", "Once more, please", "All of it"):
        assert text in texts


def test_what_a_server_refuses_is_said(home: Path) -> None:
    refusals = {
        "too many": [head("429 Slow", "application/json"), b'{"error": {"message": "too many"}}'],
        "Bad Gateway": [head("502 Bad", "text/html"), b"<html><title>Bad Gateway</title>"],
        "asks for a key": [head("401 No", "application/json"), b"{}"],
        "out of memory": [head(), event({"error": {"message": "out of memory"}})],
    }
    answers = list(refusals.values())
    with scripted(answers, listing("far")) as script, of_address(home, script) as terminal:
        for words in refusals:
            ask(terminal, f"What of {len(words)}?")
            terminal.until(words)
        leave(terminal)
    assert [text for text in said(home) if text] == [f"What of {len(words)}?" for words in refusals]


def test_an_answer_is_stopped_and_what_came_stays(home: Path) -> None:
    never = threading.Event()
    parts = [head(), delta(content="The beginning"), never]
    with scripted([parts], listing("far")) as script, of_address(home, script) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("The beginning")
        terminal.keys("Escape")
        assert script.gone.wait(20)
        leave(terminal)
        assert "The beginning" in said(home)


def test_a_closed_terminal_loses_nothing(home: Path) -> None:
    never = threading.Event()
    parts = [head(), delta(content="The beginning"), never]
    with scripted([parts], listing("far")) as script, of_address(home, script) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("The beginning")
        pid = terminal.pid
        terminal.close()
        terminal.until(lambda: not _runs(pid))
        assert said(home) == ["What is ice?", "The beginning"]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_model_that_is_deleted_is_said(home: Path, model: Path) -> None:
    args = ("chat", str(model), "--max-tokens", "8", "--ctx", "512", "--ignore-eos")
    with Tmux(home, *args) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("8 tokens")
        model.unlink()
        ask(terminal, "And snow?")  # it is in memory
        terminal.until(lambda: terminal.screen().count("8 tokens") == 2)
        leave(terminal)
        terminal.start()
        assert terminal.exit_code() == 1
        assert "there is no file" in terminal.screen()


def test_a_model_that_is_cut_short_is_opened_again(home: Path, model: Path) -> None:
    whole = model.read_bytes()
    args = ("chat", str(model), "--mmap", "--max-tokens", "8", "--ctx", "512", "--ignore-eos")
    with Tmux(home, *args) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("8 tokens")
        os.truncate(model, len(whole) // 2)
        ask(terminal, "And snow?")
        terminal.until("F5 opens the file again")
        terminal.keys("F5")
        terminal.until(lambda: terminal.screen().count("error:") == 2)  # what it is now
        model.write_bytes(whole)
        terminal.keys("F5")
        terminal.until(lambda: terminal.screen().count("8 tokens") == 2)
        leave(terminal)
    assert said(home)[0::2] == ["What is ice?", "And snow?"] and all(said(home))


def test_a_locked_file_of_conversations_is_written_later(home: Path, model: Path) -> None:
    args = ("chat", str(model), "--max-tokens", "8", "--ctx", "512", "--ignore-eos")
    with Tmux(home, *args) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("8 tokens")
        terminal.until(lambda: len(said(home)) == 2)
        other = sqlite3.connect(home / "conversations.sqlite", isolation_level=None)
        other.execute("begin exclusive")
        ask(terminal, "And snow?")
        terminal.until(lambda: terminal.screen().count("8 tokens") == 2)
        terminal.until(lambda: "lock" in terminal.screen().lower())
        other.execute("rollback")
        other.close()
        terminal.until(lambda: "And snow?" in said(home))
        leave(terminal)


def test_nothing_of_a_model_reaches_the_terminal_as_it_is(home: Path) -> None:
    parts = [head(), delta(reasoning_content=NASTY), delta(content=f"# {NASTY}\n\n"),
             delta(content=f"`{NASTY}`\n\n```{NASTY}\n{NASTY}\n```\n\n- {NASTY}\n"),
             delta(content=f"| a | {NASTY} |\n|---|---|\n| {NASTY} | b |\n\nThe end."),
             DONE]  # fmt: skip
    bad = [head("500 Oh", "application/json"),
           b'{"error": {"message": %s}}' % _json(f"Oh {NASTY}")]  # fmt: skip
    with (
        scripted([parts, bad], listing(f"far {NASTY}")) as script,
        of_address(home, script, lines=60) as terminal,
    ):
        ask(terminal, "What [is] \\x1b ice? [bold]")
        terminal.until("The end.")
        for seen in SEEN:
            terminal.until(lambda seen=seen: seen in " ".join(terminal.screen().split()))  # type: ignore[misc]
        _is_untouched(terminal)
        ask(terminal, "[/red] And snow?")
        terminal.until("answered 500: Oh")
        _is_untouched(terminal)
        leave(terminal)


def _json(text: str) -> bytes:
    import json

    return json.dumps(text).encode()


def _is_untouched(terminal: Tmux) -> None:
    assert "owned" not in terminal.asked("#{pane_title}")
    assert terminal.asked("#{window_bell_flag}") == "0"
    assert "owned" not in terminal.clipboard()
    raw = terminal.raw()
    for sequence in re.findall(r"\x1b[^m]{0,40}m?", raw):
        assert re.fullmatch(r"\x1b\[[0-9;:]*m|\x1b\(.?.*", sequence), ascii(sequence)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x80-\x9f\x07]", raw)


def test_it_can_be_resized(home: Path) -> None:
    good = [head(), delta(content="All of it"), DONE]
    with scripted([good], listing("far")) as script, of_address(home, script) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("All of it")
        for columns in (60, 80, 140):
            terminal.resize(columns, 20)
            wide = range(columns - 30, columns + 1)
            terminal.until(lambda wide=wide: max(map(len, terminal.lines())) in wide)  # type: ignore[misc]
            terminal.until(ASK, "All of it")
        leave(terminal)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for some kilobytes more than the program needs at a start."""
    folder = tmp_path / "full"
    folder.mkdir()
    if os.system(f"mount -t tmpfs -o size=640k tmpfs {folder} 2>/dev/null"):
        pytest.skip("no tmpfs can be mounted here")
    yield folder
    os.system(f"umount -l {folder}")


def test_a_full_disk_is_said_and_costs_nothing(full_disk: Path) -> None:
    long = "word " * 3000
    good = [head(), delta(content=long), delta(content="The end."), DONE]
    with scripted([good], listing("far")) as script, of_address(full_disk, script) as terminal:
        ask(terminal, "What is ice?")
        terminal.until("The end.")
        filler = full_disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        ask(terminal, "And snow?")
        terminal.until(lambda: "full" in terminal.screen() or "space" in terminal.screen())
        filler.unlink()
        terminal.until(lambda: "And snow?" in said(full_disk))
        leave(terminal)
        assert said(full_disk)[1] == said(full_disk)[3] == f"{long}The end."


def test_what_a_disk_that_only_reads_cannot_take_is_put_elsewhere(
    full_disk: Path, tmp_path: Path
) -> None:
    good = [head(), delta(content="All of it"), DONE]
    other = tmp_path / "other"
    other.mkdir()
    with (
        scripted([good], listing("far")) as script,
        of_address(full_disk, script, HOME=str(other)) as terminal,
    ):
        ask(terminal, "What is ice?")
        terminal.until("All of it")
        leave(terminal)
        if os.system(f"mount -o remount,ro {full_disk}"):
            pytest.skip("no tmpfs can be mounted again here")
        terminal.files = tmp_path  # its own go elsewhere
        terminal.start()
        ask(terminal, "And snow?")
        terminal.until("not saved yet")
        terminal.until("All of it")
        terminal.keys("C-q")
        assert terminal.exit_code() == 1
        terminal.until("instead")
    (written,) = other.glob("localllm-unsaved-*.json")
    assert "And snow?" in written.read_text()
