"""Records of answers: what is written can be read back, is private, bounded, and never half."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from localllm.errors import ArgumentError, FileError, FormatError
from localllm.params import GenerateParams
from localllm.store import answers
from localllm.store.answers import Answer, Answers, Fingerprint

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes of files")


def made(seed: int = 1, n_tokens: int = 3, **changes: Any) -> Answer:
    """An answer whose id depends on the seed only."""
    params = GenerateParams(seed=seed, stop=("\n",), logit_bias=((5, -1.5),)).changed()
    fingerprint = Fingerprint("sha256:" + "a" * 64, "native", 1, "f16", params, (1, 2, 3))
    fields: dict[str, Any] = {
        "model": "smollm2:135m",
        "title": "Why is the sky blue?",
        "created": "2026-11-29T18:00:00+00:00",
        "token_ids": tuple(range(n_tokens)),
        "text": "Because \u202e\ud83d\ude00 of light.".encode("utf-16", "surrogatepass").decode(
            "utf-16"
        ),
        "reasoning": "Light scatters.",
        "finish_reason": "stop",
        "opened": False,
        "raw": False,
    }
    return Answer(fingerprint, **{**fields, **changes})


def test_what_is_saved_is_found(tmp_path: Path) -> None:
    records = Answers(tmp_path / "answers")
    answer = made()
    path = records.save(answer)
    assert path.stem == answer.id and len(answer.id) == 12
    for prefix in (answer.id, answer.id[:4], f" {answer.id[:6].upper()} "):
        assert records.find(prefix) == answer
    assert records.newest() == [answer]


def test_id_is_of_the_question_only() -> None:
    assert made(text="x", title="y", created="z").id == made().id
    asked = made().fingerprint
    others = [
        dataclasses.replace(asked, model_digest="sha256:" + "b" * 64),
        dataclasses.replace(asked, engine="llama.cpp 1"),
        dataclasses.replace(asked, arithmetic=2),
        dataclasses.replace(asked, kv_type="q8_0"),
        dataclasses.replace(asked, params={"seed": 2}),
        dataclasses.replace(asked, prompt_ids=(1, 2)),
    ]
    assert len({asked.id, *(other.id for other in others)}) == 7
    # On every machine and in every version of this format: records travel.
    assert Fingerprint("sha256:0", "native", 1, "f16", {"seed": 7}, (1, 2)).id == "16124c0a944c"


def test_newest_first(tmp_path: Path) -> None:
    records = Answers(tmp_path)
    for seed in (1, 2, 3):
        path = records.save(made(seed))
        os.utime(path, (seed, seed))
    assert [a.fingerprint.params["seed"] for a in records.newest()] == [3, 2, 1]
    assert [a.fingerprint.params["seed"] for a in records.newest(limit=2)] == [3, 2]


def test_no_folder_is_no_record(tmp_path: Path) -> None:
    records = Answers(tmp_path / "none")
    assert records.newest() == [] and records.delete_all() == 0
    with pytest.raises(ArgumentError, match="there is no answer abcd") as e:
        records.find("abcd")
    assert "LOCALLLM_NO_RECORDS" in str(e.value.hint)


@pytest.mark.parametrize(
    "text",
    ["", "abc", "../answers", "/etc/passwd", "a" * 13, "abcg", "ab*d", "a\0bc", "\x1b[31m",
     "\u0661" * 4],
)  # fmt: skip
def test_an_id_is_never_a_path(tmp_path: Path, text: str) -> None:
    records = Answers(tmp_path / "answers")
    records.save(made())
    for method in (records.find, records.delete):
        with pytest.raises(ArgumentError, match="is no id of an answer") as e:
            method(text)
        assert "\x1b" not in e.value.message
    assert len(records.newest()) == 1


def test_ambiguous_prefix_names_the_ids(tmp_path: Path) -> None:
    records = Answers(tmp_path)
    one = made()
    records.save(one)
    (tmp_path / f"{one.id[:8]}0000.json").write_text("{}")
    with pytest.raises(ArgumentError, match=f"2 answers begin with {one.id[:4]}") as e:
        records.find(one.id[:4])
    assert one.id in e.value.message
    assert records.find(one.id) == one


@POSIX
@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_records_are_private(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "data" / "answers"
    old = os.umask(umask)
    try:
        path = Answers(folder).save(made())
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@POSIX
def test_no_moment_at_which_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modes are those given when the folder and the file are made, not set afterwards."""
    made_with: dict[str, int] = {}
    real_open, real_mkdir = os.open, os.mkdir

    def spy_open(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT:
            made_with[str(path)] = mode
        return real_open(path, flags, mode, **more)

    def spy_mkdir(path: Any, mode: int = 0o777, **more: Any) -> None:
        real_mkdir(path, mode, **more)
        made_with[str(path)] = mode

    monkeypatch.setattr(os, "open", spy_open)
    monkeypatch.setattr(os, "mkdir", spy_mkdir)
    folder = tmp_path / "answers"
    path = Answers(folder).save(made())
    assert made_with.pop(str(folder)) == 0o700
    ((temporary, mode),) = made_with.items()
    assert Path(temporary).parent == path.parent and mode == 0o600


@POSIX
def test_an_open_folder_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    folder.mkdir(mode=0o755)
    Answers(folder).save(made())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_cancelled_answer_keeps_the_longer_one(tmp_path: Path) -> None:
    records = Answers(tmp_path)
    whole, part = made(n_tokens=9), made(n_tokens=4, finish_reason="cancelled", text="Beca")
    os.utime(records.save(whole), (1, 1))
    path = records.save(part)
    assert records.find(whole.id) == whole
    assert path.stat().st_mtime > 1  # it was used just now
    other = made(n_tokens=2, finish_reason="cancelled", token_ids=(7, 8))
    records.save(other)  # not its beginning
    assert records.find(whole.id) == other
    records.save(part)
    records.save(whole)
    assert records.find(whole.id) == whole


def test_oldest_go_beyond_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Answers(tmp_path)
    size = records.save(made(1)).stat().st_size
    os.utime(tmp_path / f"{made(1).id}.json", (1, 1))
    monkeypatch.setattr(answers, "MAX_BYTES", 3 * size + 10)
    for seed in (2, 3, 4):
        os.utime(records.save(made(seed)), (seed, seed))
    assert [a.fingerprint.params["seed"] for a in records.newest()] == [4, 3, 2]
    monkeypatch.setattr(answers, "MAX_BYTES", 1)
    path = records.save(made(5))
    assert list(tmp_path.iterdir()) == [path]  # the last one stays, whatever its size


def test_oldest_go_beyond_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_RECORDS", 3)
    records = Answers(tmp_path)
    for seed in range(1, 6):
        os.utime(records.save(made(seed)), (seed, seed))
    assert [a.fingerprint.params["seed"] for a in records.newest()] == [5, 4, 3]


def test_leftovers_of_dead_writers_go(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".x.json.1.2.tmp", tmp_path / ".y.json.1.2.tmp"
    for path in (old, fresh):
        path.write_text("private")
    os.utime(old, (time.time() - 7200,) * 2)
    records = Answers(tmp_path)
    records.save(made())
    assert not old.exists() and fresh.exists()
    assert records.delete_all() == 1
    assert list(tmp_path.iterdir()) == []


DAMAGES: dict[str, Any] = {
    "empty": b"",
    "half": lambda text: text[: len(text) // 2],
    "not UTF-8": b"\xff\xfe",
    "a list": b"[]",
    "deep": b"[" * 200_000,
    "a number of a million digits": b"1" * 1_000_000,
    "another version": lambda text: text.replace(b'"version": 1', b'"version": 2'),
    "no version": lambda text: text.replace(b'"version": 1, ', b""),
    "a token that is a text": lambda text: text.replace(b"[0, 1, 2]", b'[0, 1, "2"]'),
    "a token that is no number": lambda text: text.replace(b"[0, 1, 2]", b"[0, 1, NaN]"),
    "a token that is true": lambda text: text.replace(b"[0, 1, 2]", b"[0, 1, true]"),
    "a token below 0": lambda text: text.replace(b"[0, 1, 2]", b"[0, 1, -2]"),
    "tokens that are a text": lambda text: text.replace(b"[0, 1, 2]", b'"012"'),
    "a text that is a number": lambda text: text.replace(b'"Light scatters."', b"5"),
    "a flag that is a text": lambda text: text.replace(b'"raw": false', b'"raw": "false"'),
    "no reasoning": lambda text: text.replace(b'"reasoning"', b'"reason"'),
    "no fingerprint": lambda text: text.replace(b'"fingerprint"', b'"finger"'),
    "another prompt": lambda text: text.replace(b"[1, 2, 3]", b"[1, 2, 4]"),
    "another seed": lambda text: text.replace(b'"seed": 1', b'"seed": 2'),
    "a parameter out of range": lambda text: text.replace(b'"seed": 1', b'"seed": -1'),
    "a parameter that is not": lambda text: text.replace(b'"seed": 1', b'"sed": 1'),
    "an escape": lambda text: text.replace(b'"native"', b'{"\\u001b[31m": 1}'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_record(tmp_path: Path, name: str) -> None:
    records = Answers(tmp_path)
    good = made(2)
    records.save(good)
    answer = made()
    path = records.save(answer)
    damage = DAMAGES[name]
    before = path.read_bytes()
    path.write_bytes(damage if isinstance(damage, bytes) else damage(before))
    assert path.read_bytes() != before
    with pytest.raises(FormatError, match="is damaged: ") as e:
        records.find(answer.id)
    assert len(e.value.message) < 400 + len(str(path))
    assert e.value.hint == f"Delete it with: localllm replay --delete {answer.id}"
    problems: list[Exception] = []
    assert records.newest(on_problem=problems.append) == [good] and len(problems) == 1
    assert records.delete(answer.id[:6]) == answer.id and not path.exists()
    records.save(answer)
    assert records.find(answer.id) == answer


@pytest.mark.parametrize("params", [{"sed": 1}, {"seed": -1}, {"top_p": 7}, {"stop": [1]}])
def test_parameters_that_cannot_be(tmp_path: Path, params: dict[str, Any]) -> None:
    """As of another version, whose record is whole and has its right id."""
    answer = made()
    answer = dataclasses.replace(
        answer, fingerprint=dataclasses.replace(answer.fingerprint, params=params)
    )
    records = Answers(tmp_path)
    records.save(answer)
    with pytest.raises(FormatError, match="is damaged"):
        records.find(answer.id)


def test_record_beyond_all_bounds_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Answers(tmp_path)
    records.save(made())
    monkeypatch.setattr(answers, "MAX_BYTES", 100)
    with pytest.raises(FormatError, match="at most 100 are read"):
        records.find(made().id)


@POSIX
def test_odd_things_in_the_folder(tmp_path: Path) -> None:
    records = Answers(tmp_path)
    records.save(made())
    os.mkfifo(tmp_path / "0123456789ab.json")  # reading it would wait for ever
    (tmp_path / "ffffffffffff.json").mkdir()
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "abcdefabcdef.json").symlink_to(tmp_path / "gone")
    assert records.newest() == [made()]
    with pytest.raises(FormatError, match="not a regular file"):
        records.find("0123")
    (tmp_path / "ffffffffffff.json").rmdir()
    assert records.delete_all() == 2  # the record and the pipe; a link to nothing is no record
    assert (tmp_path / "notes.json").exists()


@POSIX
def test_full_disk_leaves_what_was(tmp_path: Path) -> None:
    """A limit on the size of files fails a write as a full disk does."""
    records = Answers(tmp_path / "answers")
    answer = made()
    records.save(answer)
    code = (
        "import resource, sys; sys.path[:0] = [sys.argv[2] + '/tests/unit', sys.argv[2]]\n"
        "from test_answers import *; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "for answer in (made(), made(2)):\n"
        "    try: Answers(Path(sys.argv[1])).save(answer)\n"
        "    except FileError as e: print(e.message, '|', e.hint)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(records.folder), str(root)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("cannot write the record") == 2
    assert done.stdout.count("LOCALLLM_NO_RECORDS=1") == 2
    assert records.newest() == [answer]
    assert [path.name for path in records.folder.iterdir()] == [f"{answer.id}.json"]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the folder"):
        Answers(tmp_path / "file" / "answers").save(made())
    with pytest.raises(FileError, match="cannot write the record"):
        Answers(tmp_path / "file").save(made())


def test_concurrent_writers_and_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record that is seen is whole, whoever writes, trims or deletes at the same time."""
    monkeypatch.setattr(answers, "MAX_RECORDS", 6)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the disk is not what is tested
    problems: list[Exception] = []
    longest = "long " * 5000

    def write(first: int) -> None:
        try:
            for n in range(40):
                seed = (first + n) % 10
                Answers(tmp_path).save(made(seed, text=longest if n % 2 else "short"))
        except Exception as e:
            problems.append(e)

    def read() -> None:
        for _ in range(40):
            Answers(tmp_path).newest(
                on_problem=lambda e: problems.append(e) if isinstance(e, FormatError) else None
            )

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 0, 3, 7)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    Answers(tmp_path).save(made(99))
    assert 1 <= len(Answers(tmp_path).newest()) <= 6
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*.tmp"))


def test_variable_turns_records_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, allowed in (("", True), ("1", False), ("yes", False)):
        monkeypatch.setenv("LOCALLLM_NO_RECORDS", value)
        assert answers.environment_allows() is allowed


def test_a_record_is_plain_json(tmp_path: Path) -> None:
    document = json.loads(Answers(tmp_path).save(made()).read_bytes())
    assert document["version"] == 1
    assert document["fingerprint"]["prompt_ids"] == [1, 2, 3]
    assert document["fingerprint"]["params"] == {
        "seed": 1, "stop": ["\n"], "logit_bias": [[5, -1.5]],
    }  # fmt: skip
