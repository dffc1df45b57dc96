"""Keys from the command line and from files, with names or without."""

from __future__ import annotations

from pathlib import Path

import pytest

from localllm.cli.api_keys import read_keys, read_named_keys
from localllm.errors import ArgumentError, FileError


def test_lines_are_keys_or_names_and_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\n\n  first:of-all:keys  \nalice  key-of-alice\nbob\tkey-of-bob-1\n")
    given = ["from-the-line", f"@{file}"]
    assert read_named_keys(given) == (
        ("", "from-the-line"),
        ("", "first:of-all:keys"),
        ("alice", "key-of-alice"),
        ("bob", "key-of-bob-1"),
    )
    assert read_keys(given)[2] == "key-of-alice"


@pytest.mark.parametrize(
    ("text", "message"),
    [("a b secret-secret", "line 1"), ("x\n-name secret-secret", "line 2"), ("", "no key"),
     ("na\"me secret-secret", "line 1"), ("alice short", "5 characters"), ("# only\n", "no key")],
)  # fmt: skip
def test_what_is_no_key_is_refused_without_being_shown(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=message) as caught:
        read_named_keys([f"@{file}"])
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"
    with pytest.raises(FileError):
        read_named_keys([f"@{tmp_path / 'nothing'}"])
