"""What a person at a terminal sees: progress, Ctrl-C in every phase, colours, questions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import RUN_CLI, environment
from stand_ins.conditions import wait
from stand_ins.index_server import IndexServer

pexpect = pytest.importorskip("pexpect")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")


def spawn(home: Path, *args: str, columns: int = 80, **more: str) -> pexpect.spawn:
    """A command on a terminal."""
    env = environment(home, TERM="xterm", **more)
    return pexpect.spawn(
        sys.executable,
        [str(RUN_CLI), *args],
        env=env,
        encoding="utf-8",
        timeout=30,
        dimensions=(24, columns),
        codec_errors="strict",
    )


def finish(child: pexpect.spawn) -> tuple[int | None, str]:
    """Waits for the end; returns the exit code (None if killed) and what was still printed."""
    child.expect(pexpect.EOF)
    rest = child.before
    child.close()
    return child.exitstatus, rest


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def test_load_progress_is_drawn_and_cleared(model: str, tmp_path: Path) -> None:
    code, text = finish(spawn(tmp_path, "run", model, "say hello"))
    assert code == 0
    assert "loading" in text and "\r\x1b[K" in text
    # What is left on the screen: only what follows the last clearing.
    assert text.rsplit("\x1b[K", 1)[1] == "hello\r\n"


@pytest.mark.parametrize(("columns", "shown"), [(0, "loading madeup"), (12, "loading mad")])
def test_progress_fits_the_screen(tmp_path: Path, columns: int, shown: str) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "madeup.gguf").write_bytes(small_models.gguf())
    child = spawn(tmp_path, "run", "madeup", "say x", columns=columns)
    _, text = finish(child)
    lines = [line for line in text.split("\r\x1b[K") if line.startswith("loading")]
    assert lines and all(line.startswith(shown) for line in lines)
    assert all(len(line) <= (columns or 80) - 1 for line in lines)


def test_dumb_terminal_gets_no_control_sequences(model: str, tmp_path: Path) -> None:
    env = environment(tmp_path, TERM="dumb")
    child = pexpect.spawn(
        sys.executable, [str(RUN_CLI), "run", model, "say x"], env=env, encoding="utf-8"
    )
    assert finish(child) == (0, "x\r\n")


def test_ctrl_c_while_loading(tmp_path: Path) -> None:
    slow = tmp_path / "slow.gguf"
    slow.write_bytes(b"x")
    child = spawn(tmp_path, "run", str(slow), "say x")
    child.expect("loading")
    wait((tmp_path / "busy").exists)
    began = time.monotonic()
    child.sendintr()
    code, text = finish(child)
    assert code == 130 and time.monotonic() - began < 15
    assert "Traceback" not in text and "error" not in text


def test_ctrl_c_while_decoding_keeps_the_text(model: str, tmp_path: Path) -> None:
    child = spawn(tmp_path, "run", "-v", model, "count 20000")
    child.expect(" 5 ")
    child.sendintr()
    code, text = finish(child)
    assert code == 130
    assert "ended by cancelled" in text and "Traceback" not in text


def test_ctrl_c_in_a_long_native_step(model: str, tmp_path: Path) -> None:
    """The first one is seen at once, though the main thread is in C; the step then ends."""
    child = spawn(tmp_path, "run", "-v", model, "block 2")
    wait((tmp_path / "busy").exists)
    child.sendintr()
    code, text = finish(child)
    assert code == 130 and "ended by cancelled" in text


def test_second_ctrl_c_ends_the_program(model: str, tmp_path: Path) -> None:
    child = spawn(tmp_path, "run", model, "block 60")
    wait((tmp_path / "busy").exists)
    child.sendintr()
    time.sleep(0.3)
    assert child.isalive()
    began = time.monotonic()
    child.sendintr()
    code, text = finish(child)
    assert code == 130 and time.monotonic() - began < 15
    assert "Traceback" not in text


def test_ctrl_c_while_reading_stdin(model: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(RUN_CLI), "run", model, "first"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        text=True,
    )
    assert process.stderr is not None
    assert "waiting for the rest of the prompt" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert "Traceback" not in process.stderr.read()


def test_ignored_ctrl_c_stays_ignored(model: str, tmp_path: Path) -> None:
    """A background job of a shell without job control ignores SIGINT."""
    process = subprocess.Popen(
        [sys.executable, str(RUN_CLI), "run", model, "count 400"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(tmp_path),
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == "0 1 "
    process.send_signal(signal.SIGINT)
    assert process.stdout.read().endswith(" 399 \n")
    assert process.wait(10) == 0


def test_no_prompt_on_a_terminal(model: str, tmp_path: Path) -> None:
    code, text = finish(spawn(tmp_path, "run", model, "--json", NO_COLOR="1"))
    assert code == 2
    assert text.startswith("error: there is no prompt\r\n\r\nhint: ")


def test_colours_follow_no_color(tmp_path: Path) -> None:
    _, text = finish(spawn(tmp_path, "show", "nope"))
    assert "\x1b[31;1merror:\x1b[0m" in text
    _, text = finish(spawn(tmp_path, "show", "nope", NO_COLOR="1"))
    assert "\x1b" not in text


def test_rm_asks(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    mine = folder / "mine.gguf"
    mine.write_bytes(b"12345")
    child = spawn(tmp_path, "rm", "mine")
    child.expect(re.escape("Delete mine (5 B)?"))
    child.sendline("n")
    assert finish(child)[0] == 130 and mine.exists()
    child = spawn(tmp_path, "rm", "mine")
    child.expect(re.escape("Delete mine (5 B)?"))
    child.sendline("y")
    code, text = finish(child)
    assert code == 0 and "mine deleted, 5 B freed" in text and not mine.exists()


def test_pull_draws_a_bar(tmp_path: Path) -> None:
    made = small_models.make(tmp_path, content=small_models.noise(4_000_000), stored=True)
    with IndexServer(made.wheels[0].parent, bytes_per_s=2_000_000) as index:
        child = spawn(
            tmp_path, "pull", "madeup", TEST_CATALOG=str(made.catalog_folder), **online(index)
        )
        child.expect(
            r"downloading \[#+-+\] +\d+%  [\d.]+ [kM]B of 4\.0 MB  [\d.]+ [kM]B/s  0:0\d left"
        )
        code, text = finish(child)
    assert code == 0, text
    assert text.rsplit("\x1b[K", 1)[1].startswith("madeup:1k is ready: ")
    for line in text.split("\r"):
        assert len(re.sub(r"\x1b\[K", "", line).strip("\n")) < 80 or "ready" in line


def test_ctrl_c_while_pulling(tmp_path: Path) -> None:
    made = small_models.make(
        tmp_path, content=small_models.noise(8_000_000), n_parts=2, stored=True
    )
    with IndexServer(made.wheels[0].parent, bytes_per_s=3_000_000) as index:
        more = {"TEST_CATALOG": str(made.catalog_folder), **online(index)}
        child = spawn(tmp_path, "pull", "madeup", **more)
        child.expect(r"[67]\d%")  # in the second part
        child.sendintr()
        code, text = finish(child)
        assert code == 130
        assert "What has come was kept" in text and "Traceback" not in text
        kept = sorted(path.name for path in (tmp_path / "cache" / "downloads").iterdir())
        assert made.wheels[0].name in kept and made.wheels[1].name not in kept
        index.bytes_per_s = 0
        code, text = finish(spawn(tmp_path, "pull", "madeup", **more))
        assert code == 0
        # Only once, but for the beginning: pip looks for the metadata in it.
        assert index.sent[made.wheels[0].name] < 1.3 * made.wheels[0].stat().st_size
    assert (tmp_path / "models" / made.file_name).read_bytes() == made.content


def online(index: IndexServer) -> dict[str, str]:
    """Points pip at the stand-in."""
    return {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index.url, "PIP_FIND_LINKS": ""}
