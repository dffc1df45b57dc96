"""What a pull says of memory: the limit of this process, not that of the whole machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins.conditions import wait

from localllm import session
from localllm.cli import output, pull_outlook, pull_progress
from localllm.cli.pull_line import line
from localllm.engine.llama_library import knows
from localllm.engine.memory_plan import Room
from localllm.errors import DownloadError
from localllm.store.catalog import load
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.ref import Ref, parse

GB = 10**9
FILE = RemoteFile("m.gguf", 5, None, lambda: Location("http://models.example:80/m.gguf"))


OFFER = Offer(Ref("m"), "url", "x", "", (RemoteFile("m.gguf", 5 * GB, None, lambda: nowhere()),))


def nowhere() -> Location:
    raise DownloadError("there is no network")


@pytest.mark.parametrize(
    ("memory", "free", "said"),
    [
        (4 * GB, 2 * GB, "this machine has 4.0 GB of memory, less than the model"),
        (8 * GB, 2 * GB, "only 2.0 GB of memory are free"),
        (8 * GB, 6 * GB, "6.0 GB of memory are free; what it takes beside"),
        (8 * GB, 0, "not known"),
        (0, 0, "not known"),
    ],
)
def test_without_a_header_only_the_weights_count(
    memory: int, free: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    limited = dataclasses.replace(session.machine_facts(), memory_bytes=memory, free_bytes=free)
    monkeypatch.setattr(session, "machine_facts", lambda: limited)
    outlook = pull_outlook.of_offer(OFFER)
    assert said in outlook.memory and "enough" not in outlook.memory
    full = pull_progress.room(5 * GB, 3 * GB, outlook.memory)
    assert full.startswith("only 3.0 GB are free on the disk, the whole model takes more; ")


def test_what_it_takes_beside_its_weights_counts(
    tmp_path: Path, tiny: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cgroup with room for the weights alone."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    path = tiny("llama", "Q4_0")
    size = path.stat().st_size
    offer = dataclasses.replace(OFFER, in_place=(path,))
    assert "enough to run it (" in pull_outlook.of_offer(offer).memory
    small = Room(memory_bytes=size + 1000, free_bytes=size + 1000)
    monkeypatch.setattr(Room, "here", classmethod(lambda cls, freed_bytes=0: small))
    said = pull_outlook.of_offer(offer).memory
    assert said.startswith("it will not run at this moment: the model needs "), said
    entry = next(iter(load()))
    assert "the model needs about" in pull_outlook.of_entry(entry).memory


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


def test_what_llama_cpp_knows() -> None:
    pytest.importorskip("llama_cpp")
    assert knows("granitehybrid") and knows("llama") and knows("alienarch") is False


def test_a_source_that_is_silent_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LONG_WAIT_S", 0.05)
    offer = Offer(parse("m:1b"), "url", "http://models.example:80/m.gguf", "", (FILE,))
    text = pull_progress.TextProgress(offer)
    text.begin(9 * GB, pull_outlook.Outlook("not known"))
    wait(lambda: "m:1b: waiting for models.example:80\n" in capsys.readouterr().err)
    text.end()
