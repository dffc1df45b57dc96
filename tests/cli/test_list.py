"""`list`: order, alignment, what it says of each model, narrow screens, hostile records."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import RUN_CLI, cli, environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store with models of several sizes, names and architectures."""
    models = tmp_path / "models"
    models.mkdir()
    for stem, architecture, n_floats in (
        ("zeta", "llama", 64),
        ("alpha@10b", "mamba", 500_000),
        ("alpha@2b", "qwen3", 9_000),
    ):
        data = small_models.gguf(architecture=architecture, n_floats=n_floats)
        (models / f"{stem}.gguf").write_bytes(data)
    (models / "bare.gguf").write_bytes(b"not a model")
    return tmp_path


def test_sorted_and_aligned(home: Path) -> None:
    lines = cli("list", home=home).stdout.splitlines()
    assert lines[0].split() == [
        "NAME", "SIZE", "QUANTIZATION", "SOURCE", "LAST", "USED", "ENGINE", "STATE",
    ]  # fmt: skip
    rows = [line.split() for line in lines[1:]]
    assert [row[0] for row in rows] == ["alpha:10b", "alpha:2b", "bare", "zeta"]
    assert [row[-3:-1] for row in rows] == [
        ["-", "llama.cpp"], ["-", "native"], ["-", "-"], ["-", "native"],
    ]  # fmt: skip
    assert len({line.index(unit) + 2 for line, unit in zip(lines[1:3], ("MB", "kB"), strict=True)}
               | {lines[3].index(" B ") + 2}) == 1  # fmt: skip


def test_json_is_stable(home: Path) -> None:
    rows = json.loads(cli("list", "--json", "--all", home=home).stdout)
    here = [row for row in rows if row["state"] == "ready"]
    assert [row["name"] for row in here] == ["alpha:10b", "alpha:2b", "bare", "zeta"]
    assert {tuple(row) for row in here} == {
        ("name", "state", "size", "quantization", "architecture", "engine", "digest", "modified",
         "path", "licence", "source", "used", "elsewhere"),
    }  # fmt: skip
    assert (here[2]["architecture"], here[2]["engine"]) == (None, None)
    absent = [row for row in rows if row["state"] == "available"]
    assert absent and {tuple(row) for row in absent} == {
        ("name", "state", "size", "quantization", "architecture", "engine", "digest",
         "download_size", "downloaded", "licence", "source", "used", "modified"),
    }  # fmt: skip
    assert {"native", "llama.cpp"} >= {row["engine"] for row in absent}
    assert len({row["name"] for row in rows}) == len(rows)  # also of what two sources have


def test_empty_store_teaches(tmp_path: Path) -> None:
    done = cli("list", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("No models yet.")
    assert "  localllm pull smollm2:135m\n" in done.stderr
    assert done.stderr.index("pull smollm2:135m") < done.stderr.index("pull gemma3:270m")
    assert "localllm run ./model.gguf" in done.stderr
    assert all(len(line) <= 79 for line in done.stderr.splitlines())


def test_hostile_record_is_inert(tmp_path: Path) -> None:
    made = small_models.make(tmp_path)
    env = {"TEST_CATALOG": str(made.catalog_folder), "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    assert cli("pull", "madeup", home=tmp_path, env=env).returncode == 0
    path = tmp_path / "models" / "madeup@1k.json"
    record = json.loads(path.read_text())
    record |= {
        "quantization": "\x1b]0;owned\x07",
        "kind": "hub",
        "repository": "\u202e\nfake:line  1 B",
    }
    path.write_text(json.dumps(record))
    done = cli("list", home=tmp_path, env=env)
    assert len(done.stdout.splitlines()) == 2
    assert r"\x1b]0;owned\x07" in done.stdout and r"\u202e\x0afake:line" in done.stdout
    assert not set(done.stdout) & set("\x1b\x07\u202e")


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("columns", [30, 50, 100])
def test_narrow_screen(home: Path, columns: int) -> None:
    """No line is longer than the screen, and no word is broken."""
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(
        sys.executable,
        [str(RUN_CLI), "list", "--all"],
        env=environment(home, TERM="xterm"),
        encoding="utf-8",
        dimensions=(24, columns),
    )
    child.expect(pexpect.EOF)
    lines = child.before.splitlines()
    assert max(map(len, lines)) < columns
    words = {word for line in lines for word in line.split()}
    assert {"alpha:10b", "smollm2:135m", "llama.cpp", "here"} <= words
    assert ("NAME" in words) is (columns == 100)
