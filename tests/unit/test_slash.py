"""The table of `/` commands."""

from __future__ import annotations

import pytest

from localllm import slash
from localllm.errors import ArgumentError


def test_names_of_places() -> None:
    assert "undo" in slash.known_in(slash.CHAT)
    assert "undo" not in slash.known_in(slash.RUN)
    assert slash.find("quit", slash.CHAT) == "bye"
    with pytest.raises(ArgumentError) as caught:
        slash.find("und", slash.CHAT)
    assert caught.value.hint == "Did you mean /undo?"
    with pytest.raises(ArgumentError):
        slash.find("undo", slash.RUN)


def test_no_name_is_there_twice() -> None:
    names = [each for name, row in slash.ROWS.items() for each in (name, *row.also)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "command"),
    [("/help", ("help", "")), (" /SET a b ", ("set", "a b")), ("/?", ("?", "")),
     ("/usr/bin", None), ("help", None), ("/system a\nb", ("system", "a\nb"))],
)  # fmt: skip
def test_parse(text: str, command: tuple[str, str] | None) -> None:
    assert slash.parse(text) == command
