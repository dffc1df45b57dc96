"""What the prompt keeps on the disk: conversations and the history; and how it reads texts."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_ins.command_line import ROOT, environment

from localllm.cli.repl import commands, history, saved
from localllm.cli.repl.line_editor import Pastes
from localllm.cli.repl.loop import unquoted
from localllm.cli.repl.plain_reader import PlainReader, open_quotes
from localllm.errors import ArgumentError, FileError, FormatError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALLLM_NO_HISTORY", raising=False)
    return tmp_path


TALK = saved.Saved(
    model="smollm2:135m",
    digest="sha256:" + "a" * 64,
    system="Be brief.\x1b",
    think="low",
    params={"temperature": 0.5, "stop": ["a"], "seed": 0},
    messages=[
        {"role": "user", "content": "hi \u202e", "images": ["/tmp/x.png"]},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "id": "1a2b",
         "finish_reason": "stop"},
    ],
)  # fmt: skip


def test_round_trip(home: Path) -> None:
    path = saved.path_of("talk")
    assert path == home / "conversations" / "talk.json"
    saved.save(path, TALK)
    assert saved.load(path) == TALK
    assert saved.names() == ["talk"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    saved.save(path, TALK)
    assert [each.name for each in path.parent.iterdir()] == ["talk.json"]


def test_a_save_that_fails_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved.path_of("talk")
    saved.save(path, TALK)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left") as caught:
        saved.save(path, saved.Saved("other", None, None, None, {}, []))
    hint = caught.value.hint or ""
    assert "LOCALLLM_HOME" in hint and hint.endswith("still here: /save it again.")
    with pytest.raises(FileError, match="No space left") as caught:
        saved.save(home / "own.json", TALK)
    assert "LOCALLLM_HOME" not in (caught.value.hint or "")
    assert saved.load(path) == TALK
    assert [each.name for each in path.parent.iterdir()] == ["talk.json"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a b", "a\x1b", "a\0", "-x", "con", "LPT1.json", "nul.x.md", "ä",
     "a" * 65, "a:b", "a*"],
)  # fmt: skip
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be the name"):
        saved.path_of(name)


def test_paths(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert saved.path_of("a.md") == home / "conversations" / "a.md"
    assert saved.path_of("./a") == Path("a.json")
    assert saved.path_of("../x.md") == Path("../x.md")  # a path was asked for
    assert saved.path_of("~/a.json") == Path("/somewhere/a.json")


@pytest.mark.parametrize(
    "text", ["/", "./", "../", "./..", "~/", "~", "~nouser/x", "./a\0b", "./x.json/"]
)
def test_paths_that_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"names a folder|names no folder|holds a NUL"):
        saved.path_of(text)


def test_a_path_that_cannot_be_looked_at() -> None:
    with pytest.raises(FileError, match=r"cannot look at .*too long"):
        saved.exists(saved.path_of("./" + "x" * 300))


def damaged() -> list[Any]:
    """Every field gone, and of every other type."""
    good = json.loads(json.dumps({"version": 1, **vars(TALK)}))
    cases: list[Any] = [[], None, 1, "x", {}]
    for key in good:
        cases.append({k: v for k, v in good.items() if k != key})
        for value in (7, 1.5, [], {}, ["x"], {"x": 1}, "\ud800", [None], [[]]):
            if type(value) is not type(good[key]):
                cases.append({**good, key: value})
    first = good["messages"][0]
    for key in ("role", "content"):
        cases.append({**good, "messages": [{k: v for k, v in first.items() if k != key}]})
    for change in ({"role": "banana"}, {"role": ["user"]}, {"content": None}, {"images": [1]},
                   {"images": 5}, {"content": "\ud800"}, {"reasoning_content": 3}):  # fmt: skip
        cases.append({**good, "messages": [{**first, **change}]})
    for params in ({"temperature": 9}, {"nothing": 1}, {"stop": 5}, {"seed": "x"}):
        cases.append({**good, "params": params})
    return cases


def test_damaged_files(home: Path) -> None:
    path = home / "x.json"
    texts = [json.dumps(case) for case in damaged()]
    texts += ["", "{", "\0", "[" * 100_000, json.dumps({"version": 10**400}), "NaN"]
    assert len(texts) > 60
    for text in texts:
        path.write_text(text)
        with pytest.raises(FormatError, match="is not a conversation, or damaged") as caught:
            saved.load(path)
        assert len(caught.value.message) < 400
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError):
        saved.load(path)
    with pytest.raises(FileError, match="cannot read"):
        saved.load(home / "nothere.json")
    with pytest.raises(FileError, match="cannot read"):
        saved.load(home)


def test_markdown(home: Path) -> None:
    path = saved.path_of("talk.md")
    saved.save(path, TALK)
    assert path.read_text() == (
        "# A conversation with smollm2:135m\n\n## System\n\nBe brief.\x1b\n\n## Question\n\n"
        "hi \u202e\n\n## Answer\n\n> *Reasoning*\n>\n> hm\n\nso\n"
    )
    assert saved.names() == []


def test_history_keeps_the_newest(home: Path) -> None:
    file = history.HistoryFile()
    for text in ("a", "b\nc", "  ", "", "x" * (history.MAX_CHARACTERS + 1), "é\x1b\u202e"):
        file.add(text)
    assert history.HistoryFile().read() == ["a", "b\nc", "é\x1b\u202e"]
    path = home / "history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    n = 2 * history.MAX_ENTRIES + 1
    path.write_text("".join(json.dumps(f"{i}") + "\n" for i in range(n)))
    path.chmod(0o644)
    texts = history.HistoryFile().read()
    assert texts == [f"{i}" for i in range(n - history.MAX_ENTRIES, n)]
    assert len(path.read_text().splitlines()) == history.MAX_ENTRIES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.problem is None


def test_history_that_is_damaged(home: Path) -> None:
    (home / "history").write_bytes(
        b'"good"\n{}\n"half\n\xff\xfe\n"\\ud800"\n' + b"[" * 100_000 + b'\n\n7\n"also"\n'
    )
    assert history.HistoryFile().read() == ["good", "?", "also"]


def add_many(name: str) -> None:
    file = history.HistoryFile()
    for i in range(100):
        file.add(f"{name} {i}")


def test_history_of_two_programs(home: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=add_many, args=(name,)) for name in ("a", "b")]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    texts = history.HistoryFile().read()
    assert sorted(texts) == sorted(f"{name} {i}" for name in ("a", "b") for i in range(100))


def test_history_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.HistoryFile().add("before")
    monkeypatch.setenv("LOCALLLM_NO_HISTORY", "1")
    file = history.HistoryFile()
    file.add("after")
    assert file.read() == []
    assert (home / "history").read_text() == '"before"\n'


def test_history_that_is_refused(home: Path) -> None:
    (home / "history").mkdir()
    file = history.HistoryFile()
    assert file.read() == []
    file.add("x")
    assert file.problem is not None and "is not kept in" in file.problem


@pytest.mark.parametrize(
    ("text", "command"),
    [("/bye", ("bye", "")), ("/SET x 1", ("set", "x 1")), ("/? set", ("?", "set")),
     (" /system a\nb ", ("system", "a\nb")), ("/usr/bin x", None), ("// x", None), ("/", None),
     ("hi /bye", None), ("/a-b", None), ("/* x */", None), ("", None)],
)  # fmt: skip
def test_what_is_a_command(text: str, command: tuple[str, str] | None) -> None:
    assert commands.parse(text) == command


@pytest.mark.parametrize(
    ("text", "open_", "inner"),
    [('"""a', True, ""), ('"""a"""', False, "a"), ('"""', True, ""), ('""""""', False, ""),
     ('x"""', False, ""), ('/system """a', True, ""), ('/set system """a"""', False, ""),
     ('print("""a', False, ""), ('"""\n/bye\n"""', False, "/bye"), ('""', False, "")],
)  # fmt: skip
def test_three_quotes(text: str, open_: bool, inner: str) -> None:
    assert open_quotes(text) == open_
    assert unquoted(text) == inner


def test_every_command_completes_and_has_help() -> None:
    for name, row in commands.COMMANDS.items():
        assert f"/{name}" in commands.completions("/")
        assert row.help and row.complete([]) is not None
    assert commands.completions("/set temp") == ["temperature"]
    assert commands.completions("/set parameter top_") == ["top_k", "top_n_sigma", "top_p"]
    assert commands.completions("/set think h") == ["hide", "high"]
    assert commands.completions("/set ignore_eos ") == ["default", "false", "true"]
    assert commands.completions("/think s") == ["show"]
    assert commands.completions("/load smollm2") == ["smollm2:135m"]
    assert commands.completions("/nothing x") == []


def test_pastes() -> None:
    pastes = Pastes()
    assert pastes.shown("short") == "short"
    long, other = "x" * 5000, "y" * 5000
    assert pastes.shown(long) == "[pasted 5.0 kB]" == pastes.shown(long)
    assert pastes.shown(other) == "[pasted 5.0 kB, 2]"
    assert pastes.expand("a [pasted 5.0 kB] [pasted 5.0 kB, 2]") == f"a {long} {other}"
    inner = "[pasted 5.0 kB]" + "z" * 6000
    assert pastes.expand(pastes.shown(inner)) == inner  # what was pasted is not expanded


def test_plain_reader_joins_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'one\r\n"""two\nthree\n"""\n"""open'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    reader = PlainReader()
    assert [reader.read() for _ in range(3)] == ["one", '"""two\nthree\n"""', '"""open']
    with pytest.raises(EOFError):
        reader.read()


def test_the_line_editor_is_imported_by_nothing_else(home: Path) -> None:
    """One answer, help and plain conversations load no line editor."""
    (home / "m.gguf").write_bytes(b"x")
    code = (
        "import sys; sys.path.insert(0, 'tests'); from stand_ins import fake_session; "
        "sys.modules['localllm.session'] = fake_session; from localllm.cli.main import main; "
        "code = main(sys.argv[1:]); print(code, 'prompt_toolkit' in sys.modules, "
        "'numpy' in sys.modules, 'jinja2' in sys.modules)"
    )
    for words in (["run", "--help"], ["list"], ["run", str(home / "m.gguf"), "say x"],
                  ["run", "--plain", str(home / "m.gguf")]):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=ROOT, env=environment(home), input="say x\n", capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == "0 False False False", words


def test_the_guide_has_the_tables() -> None:
    """docs/COMMAND_LINE.md names every parameter and command as the tables have them. If this
    fails: python scripts/document_tables.py"""
    sys.path.insert(0, str(ROOT / "scripts"))
    import document_tables

    guide = document_tables.GUIDE.read_text("utf-8")
    assert document_tables.documented(guide) == guide
    assert "| `top_k` | 40 | 0 to 2147483647 | " in guide
    assert "| `/save [--force] NAME` | " in guide
