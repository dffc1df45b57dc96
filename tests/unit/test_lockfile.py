"""The lock file: what was pulled, and what is damaged in it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path

import pytest

from localllm.errors import FileError, FormatError
from localllm.store import lockfile
from localllm.store.lockfile import Lockfile, outdated
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.ref import parse

ASKED = parse("llama3:70b")
REF = parse("llama3:70b-q4_k_m")


def offer(name: str = "llama3:70b-q4_k_m", sha256: str | None = "a" * 64, **more: object) -> Offer:
    file = RemoteFile("m-Q4_K_M.gguf", 5, sha256, lambda: Location("https://e.com"))
    made = Offer(parse(name), "hub", "u/r", "c" * 40, (file,), quantization="Q4_K_M")
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


HASHES = {"m-Q4_K_M.gguf": (5, "a" * 64)}


@pytest.fixture
def lock(tmp_path: Path) -> Lockfile:
    return Lockfile(tmp_path / "config" / "models.lock.json")


def test_pin_and_find(lock: Lockfile) -> None:
    assert lock.find(ASKED) is None and lock.canonical(ASKED) == ASKED and lock.all() == {}
    lock.pin(ASKED, offer(), HASHES)
    for name in (ASKED, REF):
        pin = lock.find(name)
        assert pin is not None and lock.canonical(name) == REF
        assert (pin.source, pin.repository, pin.revision) == ("hub", "u/r", "c" * 40)
        assert pin.files == (lockfile.PinnedFile("m-Q4_K_M.gguf", 5, "a" * 64),)
    document = json.loads(lock.path.read_text())
    assert document["names"] == {"llama3:70b": "llama3:70b-q4_k_m"}
    assert list(lock.path.parent.iterdir()) == [lock.path]


def test_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    assert Lockfile().path == tmp_path / "config" / "models.lock.json"


def good() -> dict[str, object]:
    file = {"name": "x.gguf", "size": 1, "sha256": "a" * 64}
    pin = {"source": "hub", "repository": "u/r", "revision": "main", "quantization": "",
           "files": [file]}  # fmt: skip
    return {"version": 1, "names": {"a": "b"}, "models": {"b": pin}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2), (("names",), []), (("names", "a"), 5), (("names", "../x"), "b"),
        (("names", "a"), "../x"), (("models",), None), (("models", "../x"), {}),
        (("models", "b"), 5), (("models", "b", "files"), []), (("models", "b", "files"), [5]),
        (("models", "b", "source"), None), (("models", "b", "repository"), "a\x1bb"),
        (("models", "b", "files", 0, "size"), -1), (("models", "b", "files", 0, "size"), True),
        (("models", "b", "files", 0, "sha256"), "../../x"),
        (("models", "b", "files", 0, "name"), 5),
    ],
)  # fmt: skip
def test_damaged(lock: Lockfile, path: tuple[str | int, ...], value: object) -> None:
    document = good()
    lock.path.parent.mkdir()
    lock.path.write_text(json.dumps(document))
    assert lock.find(parse("a")) is not None
    place: object = document
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    lock.path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="is damaged") as caught:
        lock.find(parse("a"))
    assert str(lock.path) in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"null"])
def test_no_json(lock: Lockfile, content: bytes) -> None:
    lock.path.parent.mkdir()
    lock.path.write_bytes(content)
    with pytest.raises(FormatError, match="is damaged"):
        lock.all()


def test_writers_do_not_lose_each_others_pins(lock: Lockfile) -> None:
    names = [f"m{i}" for i in range(12)]
    threads = [
        threading.Thread(target=lock.pin, args=(parse(name), offer(name), HASHES)) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, lock.all())) == sorted(names)


def test_a_writer_that_died_is_got_over(lock: Lockfile, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = lock.path.with_name(".models.lock.json.busy")
    guard.parent.mkdir()
    guard.touch()
    monkeypatch.setattr(lockfile, "_WAIT_S", 0.1)
    os.utime(guard, (time.time() + 100,) * 2)  # held just now
    with pytest.raises(FileError, match="another process"):
        lock.pin(ASKED, offer(), HASHES)
    os.utime(guard, (1, 1))
    lock.pin(ASKED, offer(), HASHES)
    assert lock.find(ASKED) is not None and not guard.exists()


def test_outdated(lock: Lockfile) -> None:
    lock.pin(ASKED, offer(), HASHES)
    pin = lock.find(ASKED)
    assert pin is not None
    assert outdated(pin, offer()) == outdated(pin, offer(revision="d" * 40)) == ""
    assert outdated(pin, offer(sha256=None)) == ""
    other = offer(sha256="b" * 64, revision="d" * 40)
    assert outdated(pin, other) == "another file at dddddddddddd, pulled at cccccccccccc"
    two = other.files * 2
    assert outdated(pin, dataclasses.replace(other, files=two)) == "2 files instead of 1"
