"""Tokens of conversations outlive the process, and only what is right of them is used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from test_transcripts import plain, prompt, tokenizer  # noqa: F401 a fixture

from localllm.engine import kv_files
from localllm.engine.transcript_files import TranscriptFiles
from localllm.engine.transcripts import Transcripts
from localllm.store import kv_cache
from localllm.text.tokenizer import Tokenizer

A, B = "sha256:a", "sha256:b"
NAME = bytes(range(64))


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_tokens_are_there_after_a_restart(tmp_path: Path, tokenizer: Tokenizer) -> None:  # noqa: F811
    root = tmp_path / "cache" / "kv"
    kept = TranscriptFiles(root)
    before = Transcripts(files=kept)
    first = before.ids_of(prompt(tokenizer, "hi"), b"me", model=A)
    said = plain(tokenizer, "abab")
    before.add_answer(first, [*said, 258])
    kept.flush()
    turns = ("hi", "abab", "more")
    whole = prompt(tokenizer, *turns)
    second = before.ids_of(whole, b"me", model=A)
    assert list(second.ids) != whole.ids()
    after = Transcripts(files=TranscriptFiles(root))
    asked = after.ids_of(whole, b"me", model=A)
    assert asked.ids == second.ids
    # It goes on in memory from there, and on the disk.
    after.add_answer(asked, plain(tokenizer, "ab"))
    assert after._files is not None
    after._files.flush()
    third = prompt(tokenizer, *turns, "ab", "x")
    known = (*second.ids, *plain(tokenizer, "ab"))
    for each in (after, Transcripts(files=TranscriptFiles(root))):
        assert each.ids_of(third, b"me", model=A).ids[: len(known)] == known
    # Of another caller, of another model, and where nothing is looked for, there is nothing.
    for salt, model in ((b"you", A), (b"me", B), (b"me", "")):
        other = Transcripts(files=TranscriptFiles(root))
        assert list(other.ids_of(whole, salt, model=model).ids) == whole.ids()
    assert len(files(root)) == 4  # of each answer its end and its call
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(root))
    assert all(f.stat().st_mode & 0o777 == 0o700 for f in root.rglob("*") if f.is_dir())
    kv_cache.forget(kv_cache.model_folder(root, A))  # as `rm` does
    assert files(root) == []
    assert list(Transcripts(files=kept).ids_of(whole, b"me", model=A).ids) == whole.ids()


def test_an_answer_that_comes_back_changed_after_a_restart(
    tmp_path: Path,
    tokenizer: Tokenizer,  # noqa: F811
) -> None:
    kept = TranscriptFiles(tmp_path / "kv")
    before = Transcripts(files=kept)
    first = before.ids_of(prompt(tokenizer, "hi"), model=A)
    before.add_answer(first, [*plain(tokenizer, "abab"), 258])
    second = before.ids_of(prompt(tokenizer, "hi", "abab", "more"), model=A)
    before.add_answer(second, [*plain(tokenizer, "ab"), 258])
    kept.flush()
    n_first, n_second = (len(each.ids) - each.ids[::-1].index(257) - 1 for each in (first, second))
    for turns, changed_at in (
        (("hi", "abab", "more", "ab", "x"), None),
        (("hi", "abab", "more", "xx", "x"), n_second),
        (("hi", "abab", "other"), None),
        (("hi", "xx", "more", "ab", "x"), n_first),
        (("hi",), None),
        (("ho", "abab", "x"), None),
    ):
        after = Transcripts(files=TranscriptFiles(tmp_path / "kv"))
        one = prompt(tokenizer, *turns)
        asked = after.ids_of(one, model=A)
        assert asked.changed_at == changed_at, turns
        same = before.ids_of(one, keep=False, model=A)
        assert (same.ids, same.changed_at) == (asked.ids, changed_at), turns
        assert after.ids_of(one, model=A).ids == asked.ids  # now from memory


def test_what_is_not_to_be_kept_is_not(tmp_path: Path, tokenizer: Tokenizer) -> None:  # noqa: F811
    kept = TranscriptFiles(tmp_path / "kv")
    transcripts = Transcripts(files=kept)
    transcripts.ids_of(prompt(tokenizer, "hi"), keep=False, model=A)
    asked = transcripts.ids_of(prompt(tokenizer, "ho"))
    transcripts.add_answer(asked, plain(tokenizer, "ab"))
    kept.flush()
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", ["flipped", "cut", "foreign", "renamed", "open", "link", "long"])
def test_what_is_damaged_is_removed(kind: str, tmp_path: Path) -> None:
    kept = TranscriptFiles(tmp_path / "kv")
    kept.keep(A, NAME, range(100))
    kept.keep(A, NAME[::-1], range(9))
    kept.flush()
    assert kept.find(A, NAME) == list(range(100)) and kept.find(B, NAME) is None
    path, other = kept._path(A, NAME), kept._path(A, NAME[::-1])
    data = path.read_bytes()
    if kind == "flipped":
        path.write_bytes(data[:150] + bytes([data[150] ^ 1]) + data[151:])
    elif kind == "cut":
        path.write_bytes(data[:-4])
    elif kind == "foreign":
        path.write_bytes(b"GGUF" + data[4:])
    elif kind == "renamed":
        other.replace(path)
    elif kind == "open":
        path.chmod(0o644)
    elif kind == "link":
        path.unlink()
        path.symlink_to(other)
    else:
        path.write_bytes(data + data)
    assert kept.find(A, NAME) is None
    assert kept.n_damaged == 1 and not path.is_symlink() and not path.exists()
    kept.keep(A, NAME, range(7))
    kept.flush()
    assert kept.find(A, NAME) == list(range(7))


def test_ids_that_the_model_has_not(tmp_path: Path, tokenizer: Tokenizer) -> None:  # noqa: F811
    kept = TranscriptFiles(tmp_path / "kv")
    asked = Transcripts(files=kept).ids_of(prompt(tokenizer, "hi"), model=A)
    text = asked._text.copy()
    text.add("ab")
    kept.keep(A, text.name(), [*asked.ids, 10**6])
    kept.flush()
    whole = prompt(tokenizer, "hi", "ab", "x")
    assert list(Transcripts(files=kept).ids_of(whole, model=A).ids) == whole.ids()


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = TranscriptFiles(tmp_path / "kv")
    monkeypatch.setattr(os, "write", full)
    kept.keep(A, NAME, range(5))
    kept.flush()
    assert kept.stopped and kept.find(A, NAME) is None and files(tmp_path) == []
    kept.keep(A, NAME, range(5))  # nothing more is tried


def test_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    kept = TranscriptFiles(tmp_path / "kv")
    kept.keep(A, NAME, range(5))
    kept.flush()
    folder = kept._path(A, NAME).parent
    left = folder / ".0123456789abcdef.1.99999999.tmp"
    left.write_bytes(b"LLLM")
    os.utime(left, (0, 0))
    again = TranscriptFiles(tmp_path / "kv")
    again.keep(A, NAME[::-1], range(5))
    again.flush()
    assert not left.exists() and len(files(tmp_path)) == 2
    assert kv_files.FILE_MODE == 0o600
