"""`cp`, `create`, `import`, `verify`, `gc`, `rm`, `show` and `list` on made-up files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.command_line import ROOT, cli, is_error

from localllm.errors import FileError
from localllm.store import copies, kv_cache, leftovers
from localllm.store.index import Record, Store
from localllm.store.ref import parse
from localllm.store.transfer.partials import Files

DATA = small_models.gguf(template="{{ messages }}")
SHA256 = hashlib.sha256(DATA).hexdigest()
RECORD = {
    "version": 2, "size": 1, "sha256": "", "source": "s", "added": "a", "architecture": "",
    "quantization": "", "licence": "",
}  # fmt: skip
EVIL = "\x1b]0;owned\x07\u202e"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store with the model `one`, a file of the user's own."""
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    (models / "one.gguf").write_bytes(DATA)
    return tmp_path / "home"


def ok(home: Path, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    done = cli(*args, home=home, **more)
    assert done.returncode == 0, done.stderr
    return done


def rows(home: Path, *args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ok(home, *args, "--json").stdout)
    return found


def refused(home: Path, *args: str, why: str, hint: str | None = None, code: int = 1) -> None:
    done = cli(*args, home=home)
    assert done.returncode == code and is_error(done.stderr, why, hint=hint), done.stderr
    assert not set("\x1b\x07\u202e") & set(done.stderr + done.stdout)


def test_cp_shares_the_file(home: Path) -> None:
    assert ok(home, "cp", "one", "two:1b").stdout.startswith("two:1b is ready: ")
    first, second = home / "models" / "one.gguf", home / "models" / "two@1b.gguf"
    assert first.samefile(second)
    refused(home, "cp", "one", "two:1b", why="there is a model called two:1b", hint="--force")
    ok(home, "cp", "one", "two:1b", "--force")
    assert ok(home, "rm", "-y", "one").stdout == "one deleted, 0 B freed\n"
    assert second.read_bytes() == DATA
    assert ok(home, "rm", "-y", "two:1b").stdout == f"two:1b deleted, {len(DATA)} B freed\n"
    assert list((home / "models").iterdir()) == []


@pytest.mark.parametrize("name", ["a/b", "../x", "x.gguf", "/etc/passwd", "CON", "[/red]", EVIL])
def test_names_of_ones_own_are_plain(home: Path, name: str) -> None:
    for args in (("cp", "one", name), ("create", name), ("import", "./one.gguf", name)):
        done = cli(*args, home=home)
        assert done.returncode == 2 and is_error(done.stderr, "", hint=""), (args, done.stderr)
        assert not set("\x1b\x07\u202e") & set(done.stderr)
    assert [path.name for path in (home / "models").iterdir()] == ["one.gguf"]


def test_without_links_a_record_refers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object, **more: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = Store(home / "models")
    one = store.find(parse("one"))
    assert one is not None
    two = copies.add(store, parse("two"), copies.origin_of(one), "a copy")
    assert two.elsewhere and two.path == one.path and copies.users_of(store, one) == [two]
    assert [path.name for path in sorted(store.folder.iterdir())] == ["one.gguf", "two.json"]
    refused(home, "rm", "-y", "one", why="two would lose its file", hint="together")
    ok(home, "rm", "-y", "one", "two")
    assert list(store.folder.iterdir()) == []


def test_import_in_place_copy_and_move(home: Path, tmp_path: Path) -> None:
    own = tmp_path / "Own-1B-Q8_0.gguf"
    own.write_bytes(DATA)
    assert ok(home, "import", str(own)).stdout.startswith(f"own-1b:q8_0 is ready: {own}")
    (row,) = [row for row in rows(home, "list") if row["name"] == "own-1b:q8_0"]
    assert row["elsewhere"] and row["path"] == str(own) and row["quantization"] == "Q8_0"
    refused(home, "import", str(own), why="own-1b:q8_0 already", hint="--force")
    ok(home, "import", str(own), "copied", "--copy")
    assert own.exists() and (home / "models" / "copied.gguf").read_bytes() == DATA
    gone = ok(home, "rm", "-y", "own-1b:q8_0")
    assert gone.stdout.endswith("deleted, 0 B freed\n")
    assert gone.stderr == f"Its file stays where it is: {own}\n"
    assert own.read_bytes() == DATA
    ok(home, "import", str(own), "moved", "--move")
    assert not own.exists() and (home / "models" / "moved.gguf").read_bytes() == DATA
    inside = str(home / "models" / "moved.gguf")
    refused(home, "import", inside, "x", why="in the store already", hint="cp", code=2)
    refused(home, "import", "gone.gguf", why="no file gone.gguf")
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    refused(home, "import", str(tmp_path / "page.gguf"), why="not a GGUF file")


def test_names_that_share_a_file_in_place(home: Path, tmp_path: Path) -> None:
    own, file = tmp_path / "own.gguf", tmp_path / "Modelfile"
    own.write_bytes(DATA)
    ok(home, "import", str(own), "first")
    file.write_text("FROM first\nSYSTEM hi\n")
    ok(home, "create", "second", "-f", str(file))
    refused(home, "import", str(own), "third", "--move", why="second", hint="--move")
    ok(home, "rm", "-y", "first")  # the file is the user's: nothing is lost
    assert own.read_bytes() == DATA
    assert ok(home, "show", "second", "--system").stdout == "hi\n"
    ok(home, "rm", "-y", "second")
    ok(home, "import", str(own), "third", "--move")
    assert not own.exists()


def test_import_of_a_folder(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    refused(home, "import", str(folder), why="holds no GGUF file")
    for name in ("A-Q4_0.gguf", "mmproj-A.gguf"):
        (folder / name).write_bytes(DATA)
    ok(home, "import", str(folder), "mine:4b")
    (row,) = [row for row in rows(home, "list") if row["name"] == "mine:4b"]
    assert row["path"] == str(folder / "A-Q4_0.gguf")
    (folder / "B-Q4_0.gguf").write_bytes(DATA)
    refused(home, "import", str(folder), why="holds 2 models", hint="A-Q4_0.gguf", code=2)


def test_create_inherits_and_overrides(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    file.write_text(
        "FROM one\nSYSTEM first\nPARAMETER top_k 3\nPARAMETER num_gpu 9\nLICENSE mine\n"
    )
    done = ok(home, "create", "a", "-f", str(file))
    assert done.stderr == (
        "note: PARAMETER num_gpu: without effect, layers are not split between devices\n"
    )
    assert (home / "models" / "a.gguf").samefile(home / "models" / "one.gguf")
    file.write_text("FROM a\nSYSTEM second\n")
    ok(home, "create", "b", "-f", str(file))
    assert ok(home, "show", "b", "--system").stdout == "second\n"
    assert ok(home, "show", "b", "--license").stdout == "mine\n"
    assert ok(home, "show", "b", "--parameters").stdout.split() == ["top_k", "3"]
    none = ok(home, "show", "one", "--parameters")
    assert none.stdout == "" and "one sets no parameters" in none.stderr
    assert json.loads(ok(home, "show", "b", "--parameters", "--json").stdout) == {
        "parameters": {"top_k": 3}
    }
    text = ok(home, "show", "b", "--modelfile").stdout
    assert text.startswith(f"FROM {home / 'models' / 'b.gguf'}\n") and "SYSTEM" in text
    assert "system (--system)" in ok(home, "show", "b").stdout
    # What it shows makes the same model again, and in place of itself.
    again = cli("create", "b", "--force", "-f", "-", home=home, stdin=text.encode())
    assert again.returncode == 0, again.stderr
    assert ok(home, "show", "b", "--modelfile").stdout == text
    assert (home / "models" / "b.gguf").read_bytes() == DATA
    refused(home, "create", "b", "-f", str(file), why="called b already", hint="--force")


@pytest.mark.parametrize(
    ("text", "why", "code"),
    [
        (b"SYSTEM x\n", "has no FROM", 1),
        (b"FROM one\nADAPTER ./a.gguf\n", "line 2: ADAPTER ./a.gguf", 1),
        (b"FROM one\nPARAMETER top_k x\n", "line 2", 2),
        (b"FROM nobody\n", "nobody", 1),
        (b"FROM ./gone.gguf\n", "gone.gguf", 1),
        (b"FROM one\nNONSENSE \x1b]0;x\x07\n", "line 2", 1),
        (b"\xff", "UTF-8", 1),
    ],
)
def test_modelfiles_that_are_refused(home: Path, text: bytes, why: str, code: int) -> None:
    done = cli("create", "x", "-f", "-", home=home, stdin=text)
    assert done.returncode == code and is_error(done.stderr, why), done.stderr
    assert "\x1b" not in done.stderr
    assert [path.name for path in (home / "models").iterdir()] == ["one.gguf"]


def test_list_reads_the_quantization_where_no_record_has_it(home: Path) -> None:
    path = home / "models" / "one.json"
    path.write_text(json.dumps({**RECORD, "size": len(DATA), "kind": "url", "repository": "x"}))
    (row,) = rows(home, "list")
    assert row["quantization"] == "F32"


def test_a_damaged_record_is_not_made_official(home: Path) -> None:
    path = home / "models" / "one.json"
    for text in ("", "{}", "[" * 99999):
        path.write_text(text)
        (home / "models" / "one.gguf").write_bytes(DATA[:-1] + b"\xff")
        done = cli("verify", "one", home=home)
        assert done.returncode == 1 and "damaged, its record one.json" in done.stdout, done.stdout
        assert path.read_text() == text


def test_a_bad_catalogue_file_costs_a_note_and_itself(home: Path) -> None:
    folder = home / "config" / "catalog"
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text("name = 5")
    good = (ROOT / "models" / "catalog" / "phi4.toml").read_text()
    (folder / "own.toml").write_text(good.replace('name = "phi4"', 'name = "mine"', 1))
    ok(home, "cp", "one:latest", "two")
    for args in (["outdated"], ["search", "mine"], ["search", "smollm2"]):
        done = ok(home, *args)
        assert done.stderr.count("bad.toml") == 1 and "note: " in done.stderr, done.stderr
    assert "mine:" in ok(home, "search", "mine").stdout
    refused(home, "run", "onne", "hi", why="no model called onne", hint="one")


def test_verify(home: Path) -> None:
    done = ok(home, "verify")
    assert done.stdout == "one: nothing to compare with: its hash is on record now\n"
    assert ok(home, "verify", "one").stdout == "one: ok\n"
    assert {row["source"] for row in rows(home, "list")} == {"a file of your own"}
    (row,) = rows(home, "verify")
    assert (row["state"], row["sha256"]) == ("ok", [SHA256])
    path = home / "models" / "one.gguf"
    path.write_bytes(DATA[:-1] + b"\xff")
    done = cli("verify", home=home)
    assert done.returncode == 1 and "one.gguf has the sha256 " in done.stdout
    assert SHA256 in done.stdout and "localllm pull" in done.stderr
    path.write_bytes(DATA[:-32])
    done = cli("verify", "--json", home=home)
    (row,) = json.loads(done.stdout)
    assert done.returncode == 1 and row["state"] == "damaged" and "bytes" in row["text"]
    path.unlink()
    refused(home, "verify", "one", why="one")
    own = home / "own.gguf"
    own.write_bytes(DATA)
    refused(home, "verify", str(own), why="nothing is on record", hint="import", code=2)


def leave(home: Path) -> dict[str, Path]:
    """Everything that gc clears away, by its kind, beside things that it must not touch."""
    models, downloads = home / "models", home / "cache" / "downloads"
    tokenizers = home / "cache" / "tokenizers"
    for folder in (downloads, tokenizers):
        folder.mkdir(parents=True)
    files = Files(downloads, "ab" * 32)
    files.data.write_bytes(b"GGUF" * 1000)
    files.write_note(f"{EVIL}.gguf", f"hf.co/a/b{EVIL}", "https://x", 10_000)
    child = subprocess.Popen(["true"])
    child.wait()
    made = {
        "download": files.data,
        "temporary": models / f".x.1.{child.pid}.tmp",
        "record": models / "gone.json",
        "used mark": models / ".gone.used",
        "tokenizer": tokenizers / f"{'0' * 64}.merges",
    }
    made["temporary"].write_bytes(b"x" * 10)
    made["record"].write_text(json.dumps(RECORD))
    made["used mark"].touch()
    made["tokenizer"].write_bytes(b"x" * 100)
    os.utime(made["tokenizer"], (time.time() - 91 * 86400,) * 2)
    # None of these is waste.
    (models / f".y.1.{os.getpid()}.tmp").write_bytes(b"x")
    (models / "notes.json").write_text("[]")
    (models / ".one.used").touch()
    (tokenizers / f"{'1' * 64}.merges").write_bytes(b"x")
    unplugged = {**RECORD, "files": [{"name": "m", "size": 1, "sha256": "", "path": "/nowhere/m"}]}
    (models / "unplugged.json").write_text(json.dumps(unplugged))
    return made


def test_gc(home: Path) -> None:
    made = leave(home)
    everything = {path for path in home.rglob("*") if path.is_file()}
    dry = cli("gc", "--dry-run", home=home)
    assert dry.returncode == 0 and "can be freed" in dry.stdout
    assert not set("\x1b\x07\u202e") & set(dry.stdout) and r"\x1b]0;owned" in dry.stdout
    asked = cli("gc", home=home)
    assert asked.returncode == 2 and is_error(asked.stderr, "nobody is there", hint="--yes")
    assert {path for path in home.rglob("*") if path.is_file()} == everything
    found = json.loads(ok(home, "gc", "--dry-run", "--json").stdout)
    assert {item["kind"] for item in found["items"]} == set(made) and not found["deleted"]
    # What is younger than asked for stays; the vocabulary is 91 days old.
    for span, kinds in (("0m", set(made)), ("1w", {"tokenizer", "download"}), ("92d", set())):
        os.utime(made["download"], (1, 1))
        for path in made["download"].with_suffix(".json"), made["download"].with_suffix(".journal"):
            if path.exists():
                os.utime(path, (time.time() - 8 * 86400,) * 2)
        kept = json.loads(ok(home, "gc", "--dry-run", "--json", "--older-than", span).stdout)
        assert {item["kind"] for item in kept["items"]} == kinds
    assert "8 days ago" in ok(home, "gc", "--dry-run").stdout
    refused(home, "gc", "--older-than", "soon", why="no span of time", hint="7d", code=2)
    ok(home, "gc", "--yes")
    left = {path for path in home.rglob("*") if path.is_file()}
    assert everything - left == {*made.values(), made["download"].with_suffix(".json")}
    assert ok(home, "gc", "--yes").stderr == "There is nothing to clear away.\n"


def test_a_download_that_is_not_complete(home: Path) -> None:
    leave(home)
    (row,) = [row for row in rows(home, "list") if row["state"] == "partial"]
    assert row["name"] == f"hf.co/a/b{EVIL}" and row["download_size"] == 10_000
    shown = ok(home, "list").stdout
    assert "partial, 0 B of 10.0 kB downloaded, just now" in shown and not set(
        "\x1b\x07\u202e"
    ) & set(shown)
    files = Files(home / "cache" / "downloads", "ab" * 32)
    files.write_note("m.gguf", "hf.co/a/b:q4_0", "https://x", 10_000)
    assert "hf.co/a/b:q4_0 deleted" in ok(home, "rm", "-y", "hf.co/a/b:Q4_0").stdout
    assert not files.data.exists() and not files.note.exists()


def test_gc_finds_what_a_killed_pip_left(home: Path) -> None:
    """A folder, unless its process lives."""
    downloads = home / "cache" / "downloads"
    for pid in (99999999, os.getpid()):
        done = downloads / f"pip-x.{pid}.tmp" / "done"
        done.mkdir(parents=True)
        (done / "x.whl").write_bytes(bytes(5000))
    found = json.loads(ok(home, "gc", "--dry-run", "--json").stdout)
    assert [Path(*item["paths"]).name for item in found["items"]] == ["pip-x.99999999.tmp"]
    assert found["size"] >= 5000
    ok(home, "gc", "--yes")
    assert [path.name for path in downloads.iterdir()] == [f"pip-x.{os.getpid()}.tmp"]


def test_a_folder_that_is_a_link_is_not_entered(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.1.99999999.tmp").write_bytes(b"x")
    (outside / "y.json").write_text(json.dumps(RECORD))
    (home / "models" / "linked").symlink_to(outside)
    (home / "models" / ".z.1.99999999.tmp").symlink_to(outside / "y.json")
    ok(home, "gc", "--yes")
    assert len(list(outside.iterdir())) == 2


def test_models_behind_a_link_are_not_the_stores(home: Path, tmp_path: Path) -> None:
    """A link to a folder leads out: nothing behind it is shown, hashed, run or deleted; a link to a
    file is a file that the user put there, of which only the link is the store's."""
    outside = tmp_path / "outside"
    (outside / "user").mkdir(parents=True)
    for name in ("x@q4_0.gguf", "user/y@q4_0.gguf"):
        (outside / name).write_bytes(DATA)
    (outside / "x@q4_0.json").write_text(json.dumps(RECORD))
    (home / "models" / "hf.co").symlink_to(outside)
    (home / "models" / "link.gguf").symlink_to(outside / "x@q4_0.gguf")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    names = [row["name"] for row in rows(home, "list")]
    assert names == ["link", "one"]
    assert [row["name"] for row in rows(home, "verify")] == names
    for name in ("hf.co/x:q4_0", "hf.co/user/y:q4_0"):
        for args in (("rm", "-y", name), ("verify", name), ("show", name), ("cp", name, "z")):
            assert cli(*args, home=home).returncode != 0, args
    ok(home, "gc", "--yes")
    with pytest.raises(FileError, match="links to folders in the store are not followed") as e:
        Store(home / "models").record(parse("hf.co/user/y:q4_0"), Record(1, "", "s", "a"))
    assert "LOCALLLM_HOME" in str(e.value.hint)
    assert ok(home, "rm", "-y", "link").stdout == "link deleted, 0 B freed\n"
    own = home / "models" / "hf.co" / "user" / "y@q4_0.gguf"
    ok(home, "import", str(own), "mine")  # named by its path it is a file like any other
    ok(home, "rm", "-y", "mine")
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


def test_rm_takes_whole_names(home: Path) -> None:
    for name in ("llama3.2@1b-q4_k_m", "llama3.2@1b-q8_0", "mine@2b", "hf.co/a/b@q4_k_m"):
        path = home / "models" / f"{name}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
    for name, hint in (
        ("llama3.2", "Did you mean llama3.2:1b-q4_k_m or llama3.2:1b-q8_0?"),
        ("llama3.2:1b", "whole names. Did you mean llama3.2:1b-q4_k_m?"),
        ("llama3.2:1b-q4_k", "Did you mean llama3.2:1b-q4_k_m or llama3.2:1b-q8_0?"),
        ("min", "Did you mean mine:2b?"),
        ("mine", "Did you mean mine:2b?"),
        ("hf.co/a/b", "Did you mean hf.co/a/b:q4_k_m?"),
    ):
        refused(home, "rm", "-y", name, why=f"{name} is not on this machine", hint=hint)
    assert len(rows(home, "list")) == 5
    for name in ("Llama3.2:1B-Instruct-Q4_K_M", "llama3.2:1b-q8_0", "mine:2b"):
        ok(home, "rm", "-y", name)
    assert [row["name"] for row in rows(home, "list")] == ["hf.co/a/b:q4_k_m", "one"]


def test_hostile_settings_are_shown_escaped(home: Path) -> None:
    text = (
        f'FROM one\nSYSTEM """{EVIL}"""\nLICENSE """{EVIL}"""\nTEMPLATE """{{{{ x }}}}{EVIL}"""\n'
    )
    done = cli("create", "evil", "-f", "-", home=home, stdin=text.encode())
    assert done.returncode == 0, done.stderr
    for option in ("--system", "--license", "--template", "--modelfile", "-v"):
        shown = ok(home, "show", "evil", option).stdout
        assert not set("\x1b\x07\u202e") & set(shown)
        assert option == "-v" or r"\x1b]0;owned\x07\u202e" in shown
    exact = json.loads(ok(home, "show", "evil", "--json").stdout)
    assert exact["settings"]["system"] == EVIL
    assert json.loads(ok(home, "show", "evil", "--system", "--json").stdout) == {"system": EVIL}
    refused(home, "show", "one", "--system", why="no instructions", code=2)


def test_leftovers_of_nothing(tmp_path: Path) -> None:
    from localllm.paths import Paths
    from localllm.store.catalog import Catalog

    assert leftovers.find(Paths(tmp_path / "a", tmp_path / "b", tmp_path / "c"), Catalog(())) == []


def test_computed_conversations_go_with_their_model(home: Path) -> None:
    ok(home, "cp", "one", "two:1b")
    (model, *_) = Store(home / "models").list()
    digest = kv_cache.digest_of(model)
    root = home / "cache" / "kv"
    mine = kv_cache.model_folder(root, digest) / "key" / ("0" * 64)
    nobodys = kv_cache.model_folder(root, "sha256:gone") / "key" / ("1" * 64)
    away = home / "away"
    for path in (mine, nobodys, away / "precious"):
        path.parent.mkdir(parents=True)
        path.write_bytes(DATA)
    (root / "linked").symlink_to(away)
    (found,) = json.loads(ok(home, "gc", "--dry-run", "--json").stdout)["items"]
    assert found["kind"] == "conversations" and found["size"] == len(DATA)
    assert found["paths"] == [str(nobodys.parents[1])]
    ok(home, "gc", "--yes")
    assert not nobodys.parents[1].exists() and mine.exists() and (away / "precious").exists()
    ok(home, "rm", "-y", "one")
    assert mine.exists()  # the other one has the same weights
    ok(home, "rm", "-y", "two:1b")
    assert not mine.parents[1].exists()
