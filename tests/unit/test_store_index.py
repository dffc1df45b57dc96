"""The folder of models: records, damage, files that the user put there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from localllm.errors import FileError
from localllm.store.index import Record, Store
from localllm.store.record import FileRecord
from localllm.store.ref import Ref, parse

RECORD = Record(
    size=5, sha256="ab" * 32, source="test", added="2026-01-01T00:00:00+00:00", licence="CC0"
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "models")
    store.folder.mkdir()
    return store


def add(store: Store, name: str, content: bytes = b"12345") -> Ref:
    ref = parse(name)
    store.path(ref).parent.mkdir(parents=True, exist_ok=True)
    store.path(ref).write_bytes(content)
    return ref


def test_no_folder_means_no_models(tmp_path: Path) -> None:
    store = Store(tmp_path / "nowhere")
    assert store.list() == [] and store.find(parse("x")) is None


def test_record_round_trip(store: Store) -> None:
    ref = add(store, "m:1b")
    store.record(ref, RECORD)
    model = store.find(ref)
    assert model is not None and model.record == RECORD and model.problem is None
    assert model.record.digest == "sha256:" + "ab" * 32
    assert model.path.name == "m@1b.gguf"
    document = json.loads((store.folder / "m@1b.json").read_text())
    assert document["name"] == "m:1b" and document["version"] == 2


def test_a_record_of_version_1_is_read(store: Store) -> None:
    ref = add(store, "m:1b")
    keys = ("size", "sha256", "source", "added", "architecture", "quantization", "licence")
    old = {"version": 1, "name": "m:1b", **{key: getattr(RECORD, key) for key in keys}}
    (store.folder / "m@1b.json").write_text(json.dumps(old))
    model = store.find(ref)
    assert model is not None and model.record == RECORD


def test_files_that_lie_elsewhere(store: Store, tmp_path: Path) -> None:
    parts = [tmp_path / f"x-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"123")
    files = tuple(FileRecord(part.name, 3, path=str(part)) for part in parts)
    ref = parse("hf.co/user/repo:q4_0")
    store.record(ref, dataclasses.replace(RECORD, size=6, sha256="", files=files))
    (model,) = store.list()
    assert (model.ref, model.files, model.size) == (ref, tuple(parts), 6)
    assert model.elsewhere and model.problem is None
    parts[1].unlink()
    (model,) = store.list()
    assert model.problem == "1 of its 2 files are missing" and model.record is None
    parts[0].unlink()
    (model,) = store.list()
    assert model.problem == "2 of its 2 files are missing" and model.path == parts[0]
    parts[0].write_bytes(b"123")
    store.remove(model)
    assert store.list() == [] and parts[0].exists() and not (store.folder / "hf.co").exists()


def test_the_last_use(store: Store) -> None:
    ref = add(store, "m:1b")
    before = store.find(ref)
    assert before is not None and before.used == 0
    store.touch(ref)
    after = store.find(ref)
    assert after is not None and after.used > 1e9
    assert [str(model.ref) for model in store.list()] == ["m:1b"]
    store.remove(after)
    assert list(store.folder.iterdir()) == []


def test_list_is_sorted_and_ignores_other_files(store: Store) -> None:
    for name in ("b", "a:2", "a"):
        add(store, name)
    for other in (
        "UPPER.gguf",
        "con.gguf",
        "note.txt",
        ".a.gguf.123.tmp",
        "x y.gguf",
        "a@latest.gguf",
    ):
        (store.folder / other).write_bytes(b"x")
    (store.folder / "folder.gguf").mkdir()
    assert [str(model.ref) for model in store.list()] == ["a:2", "a", "b"]


def test_a_file_dropped_in_is_a_model(store: Store) -> None:
    ref = add(store, "mine")
    model = store.find(ref)
    assert model is not None and (model.record, model.problem, model.size) == (None, None, 5)


GOOD = {"name": "m:1b", **RECORD.document()}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\0" * 300,
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"version": 1}',
        json.dumps({**GOOD, "version": 3}).encode(),
        json.dumps({**GOOD, "size": "5"}).encode(),
        json.dumps({**GOOD, "size": True}).encode(),
        json.dumps({**GOOD, "size": -1}).encode(),
        json.dumps({**GOOD, "sha256": "../../etc"}).encode(),
        json.dumps({**GOOD, "source": None}).encode(),
        json.dumps({**GOOD, "files": [3]}).encode(),
        json.dumps(
            {**GOOD, "files": [{"name": "x", "size": 5, "sha256": "", "path": "../x"}]}
        ).encode(),
        json.dumps({**GOOD, "settings": {"parameters": {"temperature": 99}}}).encode(),
    ],
)
def test_damaged_record_is_reported_and_written_again(store: Store, content: bytes) -> None:
    ref = add(store, "m:1b")
    (store.folder / "m@1b.json").write_bytes(content)
    model = store.find(ref)
    assert model is not None and model.record is None
    assert model.problem is not None and "m@1b.json is damaged" in model.problem
    assert store.list() == [model]
    store.record(ref, RECORD)
    repaired = store.find(ref)
    assert repaired is not None and (repaired.record, repaired.problem) == (RECORD, None)


def test_record_of_another_size(store: Store) -> None:
    ref = add(store, "m:1b", b"1234")
    store.record(ref, RECORD)
    model = store.find(ref)
    assert model is not None and model.record is None
    assert model.problem == "the file has 4 bytes, its record says 5"
    assert model.damaged == RECORD


def test_remove(store: Store) -> None:
    ref = add(store, "m:1b")
    store.record(ref, RECORD)
    model = store.find(ref)
    assert model is not None
    store.remove(model)
    assert list(store.folder.iterdir()) == []
    store.remove(model)  # a second time does no harm


def test_record_leaves_no_temporary_file(store: Store) -> None:
    store.record(add(store, "m"), RECORD)
    assert sorted(path.name for path in store.folder.iterdir()) == ["m.gguf", "m.json"]


def test_refused_folder(store: Store) -> None:
    (store.folder.parent / "file").write_text("x")
    with pytest.raises(FileError, match="cannot read the model folder"):
        Store(store.folder.parent / "file").list()
    with pytest.raises(FileError, match="cannot write"):
        Store(store.folder.parent / "file" / "x").record(parse("m"), RECORD)


def add_set(store: Store, name: str, n_files: int = 2) -> Ref:
    ref = parse(name)
    for path in store.paths(ref, n_files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"123")
    return ref


def test_names_with_folders(store: Store) -> None:
    names = ["a/b/c/d:1", "hf.co/user/repo:q4_k_m", "host+5000/x", "plain"]
    for name in names:
        store.record(add(store, name), RECORD)
    assert [str(model.ref) for model in store.list()] == names
    assert all(model.record == RECORD for model in store.list())
    (store.folder / "a/b/c/d/e").mkdir(parents=True)
    (store.folder / "a/b/c/d/e/deep.gguf").write_bytes(b"x")
    (store.folder / "UPPER").mkdir()
    (store.folder / "UPPER/x.gguf").write_bytes(b"x")
    assert [str(model.ref) for model in store.list()] == names


def test_a_linked_folder_is_not_entered(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.gguf").write_bytes(b"12345")
    (store.folder / "link").symlink_to(outside)
    assert store.list() == [] and store.find(parse("link/x")) is None


def test_split_set_is_one_model(store: Store) -> None:
    ref = add_set(store, "big/m:70b", 3)
    (model,) = store.list()
    assert (model.ref, model.size, model.problem) == (ref, 9, None)
    assert [path.name for path in model.files] == [
        f"m@70b-0000{i}-of-00003.gguf" for i in (1, 2, 3)
    ]
    store.record(ref, dataclasses.replace(RECORD, size=9))
    assert store.list()[0].record is not None
    model.files[1].unlink()
    (model,) = store.list()
    assert model.problem == "1 of its 3 files are missing" and model.damaged is not None
    store.remove(model)
    assert list(store.folder.iterdir()) == []


def test_one_file_comes_before_a_set(store: Store) -> None:
    add_set(store, "m:1b")
    add(store, "m:1b")
    (model,) = store.list()
    assert (model.path.name, model.more) == ("m@1b.gguf", ())


def test_remove_leaves_other_models_of_the_folder(store: Store) -> None:
    add(store, "u/r:a")
    add(store, "u/r:b")
    store.remove(store.list()[0])
    assert [str(model.ref) for model in store.list()] == ["u/r:b"]
