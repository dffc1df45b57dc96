"""What the terminal sends: pastes, whole whatever they hold and however they are cut into reads."""

from __future__ import annotations

import pytest
from textual import events
from textual.drivers import linux_driver

from localllm.tui.terminal_driver import lasting
from localllm.tui.terminal_input import WholePastes

START, END = "\x1b[200~", "\x1b[201~"


def read(*chunks: str) -> list[str]:
    """Keys by name, pastes as they are."""
    parser = WholePastes()
    parser._is_first = False
    out = []
    for chunk in chunks:
        for event in parser.feed(chunk):
            if isinstance(event, events.Paste):
                out.append(event.text)
            elif isinstance(event, events.Key):
                out.append(event.key)
    return out


@pytest.mark.parametrize(
    "text", ["plain\ntext", "a\x1b[31mred\x1b[0m\nb\nc", "\x1b", "x\x1b", "\x1b[20", "\x1b\x1b[201"]
)
def test_a_paste_is_whole(text: str) -> None:
    data = f"{START}{text}{END}"
    assert read(data + "z") == [text, "z"]
    for at in range(1, len(data)):
        assert read(data[:at], data[at:] + "z") == [text, "z"]
    assert read(*data, "z") == [text, "z"]
    assert read(data + data) == [text, text]


def test_keys_are_keys() -> None:
    assert read("a", "\r", "\x1b[A", "\x1b[B", "\n") == ["a", "enter", "up", "down", "ctrl+j"]


def test_a_burst_without_marks_sends_at_most_once() -> None:
    keys = read("a line of text\r" * 10)
    assert keys.count("enter") == 1 and keys[-1] == "enter" and keys.count("ctrl+j") == 9
    assert read("ok\rand\r").count("enter") == 2, "so much one can type while it lags"


def test_enter_before_the_program_had_the_terminal() -> None:
    keys = [event.key for event in WholePastes().feed("hi\n") if isinstance(event, events.Key)]
    assert keys == ["h", "i", "enter"]


def test_it_is_used() -> None:
    lasting(linux_driver.LinuxDriver)
    assert linux_driver.XTermParser is WholePastes
