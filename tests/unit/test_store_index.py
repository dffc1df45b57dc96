"""The folder of models: records, damage, files that the user put there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localllm.errors import FileError
from localllm.store.index import Record, Store
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
    assert document["name"] == "m:1b" and document["version"] == 1


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


GOOD = {"version": 1, "name": "m:1b", **vars(RECORD)}


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
        json.dumps({**GOOD, "version": 2}).encode(),
        json.dumps({**GOOD, "size": "5"}).encode(),
        json.dumps({**GOOD, "size": True}).encode(),
        json.dumps({**GOOD, "size": -1}).encode(),
        json.dumps({**GOOD, "sha256": "../../etc"}).encode(),
        json.dumps({**GOOD, "source": None}).encode(),
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
        Store(store.folder / "gone").record(parse("m"), RECORD)
