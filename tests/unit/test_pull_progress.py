"""What a pull says of memory: the limit of this process, not that of the whole machine."""

from __future__ import annotations

import dataclasses
import time

import pytest

from localllm import session
from localllm.cli import output, pull_progress
from localllm.cli.pull_line import line
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.ref import parse

GB = 10**9
FILE = RemoteFile("m.gguf", 5, None, lambda: Location("http://models.example:80/m.gguf"))


@pytest.mark.parametrize(
    ("memory", "free", "said"),
    [
        (4 * GB, 2 * GB, "this machine has 4.0 GB of memory, less than the model"),
        (8 * GB, 2 * GB, "only 2.0 GB of memory are free"),
        (8 * GB, 6 * GB, "6.0 GB of memory are free, enough to run it"),
        (8 * GB, 0, "not known"),
        (0, 0, "not known"),
    ],
)
def test_whether_it_fits_is_told_from_the_memory_of_the_cgroup(
    memory: int, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = dataclasses.replace(session.machine_facts(), memory_bytes=memory, free_bytes=free)
    monkeypatch.setattr(session, "machine_facts", lambda: limited)
    assert said in pull_progress.room(5 * GB, 9 * GB)
    full = pull_progress.room(5 * GB, 3 * GB)
    assert full.startswith("only 3.0 GB are free on the disk, the whole model takes more; ")
    assert "it fits" not in full


@pytest.mark.parametrize("columns", [120, 80, 60, 40, 20])
@pytest.mark.parametrize("file", ["", "file 12 of 34"])
def test_the_line_fits_the_screen(columns: int, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What matters stays: how far it is, and how long it takes."""
    monkeypatch.setattr(output, "columns", lambda: columns)
    text = line("downloading", 123 * GB // 10, 40 * GB, 12.3e6, 2250.0, file)
    assert len(text) < columns, text
    assert "31%" in text and "left" in text
    if columns >= 60:
        assert "12.3 GB of 40.0 GB" in text and "12.3 MB/s" in text
    assert ("[###" in text) == (columns == 120 or (columns == 80 and not file)), text
    assert (file in text) == (columns >= 80 or not file), text


def test_a_line_without_a_size_and_one_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "columns", lambda: 60)
    assert line("downloading", GB, None, 0.0, None) == "downloading  1.0 GB"
    waiting = line("retrying in 9 s: cannot connect to models.example", GB, 2 * GB, 0.0, None)
    assert waiting.lstrip().startswith("50%  1.0 GB of 2.0 GB  retrying in 9 s: cannot")


def test_a_source_that_is_silent_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LONG_WAIT_S", 0.05)
    offer = Offer(parse("m:1b"), "url", "http://models.example:80/m.gguf", "", (FILE,))
    text = pull_progress.TextProgress(offer)
    text.begin(9 * GB)
    time.sleep(0.5)
    text.end()
    assert "m:1b: waiting for models.example:80\n" in capsys.readouterr().err
