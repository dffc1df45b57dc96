"""`localllm chat --list`, `--export` and `--import`: no terminal, no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand_ins.command_line import cli, is_error

from localllm.tui.conversations.store import Conversations

NASTY = "[/red] \x1b]0;t\x07 \u202eabc"
TALK = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Fine."}]


def _keep(home: Path, *titles: str) -> None:
    store = Conversations(home / "conversations.sqlite")
    for title in titles:
        made = store.create(title=title, model="m:1b")
        store.add(made.id, None, "user", f"about {title}")
    assert store.close() is None


def test_list(tmp_path: Path) -> None:
    done = cli("chat", "--list", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "No conversations yet" in done.stderr
    _keep(tmp_path, "One", NASTY)
    done = cli("chat", "--list", home=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["TITLE", "MODEL", "LAST", "USED", "TAGS"]
    assert lines[1].startswith(r"[/red] \x1b]0;t\x07 \u202eabc  m:1b")
    assert lines[2].split()[:2] == ["One", "m:1b"]
    assert "\x1b" not in done.stdout
    done = cli("chat", "--list", "--only", "one", home=tmp_path)
    assert len(done.stdout.splitlines()) == 2


def test_export_and_import(tmp_path: Path) -> None:
    _keep(tmp_path, "One", "Two")
    path = tmp_path / "out.json"
    done = cli("chat", "--export", str(path), "--only", "two", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [c["title"] for c in json.loads(path.read_bytes())["conversations"]] == ["Two"]
    done = cli("chat", "--export", str(path), home=tmp_path)
    assert done.returncode == 1
    assert is_error(done.stderr, "is there already", hint="another")
    other = tmp_path / "other"
    done = cli("chat", "--import", str(path), home=other)
    assert done.returncode == 0, done.stderr
    assert "Imported 1 conversation\n" in done.stderr
    (tmp_path / "talk.json").write_text(json.dumps(TALK))
    assert cli("chat", "--import", str(tmp_path / "talk.json"), home=other).returncode == 0
    done = cli("chat", "--list", home=other)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["TITLE", "How", "Two"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--list", "--import", "x"), "exclude each other"),
        (("--only", "x"), "exclude each other"),
        (("--export", "x.pdf"), "is no .json"),
        (("--import", "none.json"), "cannot read"),
        (("--export", "x.md", "--only", "nothing"), "nothing to export"),
    ],
)
def test_wrong_wishes(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    _keep(tmp_path, "One")
    done = cli("chat", *args, home=tmp_path)
    assert done.returncode in (1, 2)
    assert words in done.stderr
