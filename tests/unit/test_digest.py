"""Digests of model files: what changes them, and what they read."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from localllm.errors import FileError
from localllm.store import digest

MIB = 1 << 20


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(1).randbytes(9 * MIB)


def test_form(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    sample = digest.sampled_digest(path)
    assert sample.startswith("sample:") and len(sample) == 7 + 64
    assert digest.full_digest(path) == "sha256:" + hashlib.sha256(data).hexdigest()
    assert digest.digest_like(path, "sha256:0") == digest.full_digest(path)
    assert digest.digest_like(path, "sample:0") == sample


def test_neither_name_nor_time_matters(tmp_path: Path, data: bytes) -> None:
    one, other = tmp_path / "a.gguf", tmp_path / "b"
    one.write_bytes(data)
    other.write_bytes(data)
    os.utime(other, (1, 1))
    assert digest.sampled_digest(one) == digest.sampled_digest(other)


@pytest.mark.parametrize(
    "at", [0, MIB - 1, 9 * MIB - 1, 8 * MIB, 9 * MIB * 20 // 65, 9 * MIB * 40 // 65 + 1000]
)
def test_a_byte_in_a_sampled_place_changes_it(tmp_path: Path, data: bytes, at: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    before = digest.sampled_digest(path)
    changed = bytearray(data)
    changed[at] ^= 1
    path.write_bytes(changed)
    assert digest.sampled_digest(path) != before


@pytest.mark.parametrize("n_bytes", [0, 1, 1000, MIB, MIB + 1, 2 * MIB])
def test_small_files(tmp_path: Path, data: bytes, n_bytes: int) -> None:
    """Every byte counts, and so does the length."""
    path = tmp_path / "m.gguf"
    path.write_bytes(data[:n_bytes])
    seen = {digest.sampled_digest(path)}
    path.write_bytes(data[: n_bytes + 1])
    seen.add(digest.sampled_digest(path))
    if n_bytes:
        path.write_bytes(data[: n_bytes - 1] + bytes([data[n_bytes - 1] ^ 1]))
        seen.add(digest.sampled_digest(path))
    assert len(seen) == 2 + bool(n_bytes)


def test_a_huge_file_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file
    assert digest.sampled_digest(path) != digest.sampled_digest(_empty(tmp_path))


def _empty(folder: Path) -> Path:
    path = folder / "empty"
    path.write_bytes(b"")
    return path


def test_all_parts_count_whichever_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for n, path in enumerate(paths):
        path.write_bytes(bytes([n]) * 100)
    (one,) = {digest.sampled_digest(path) for path in paths}
    paths[2].write_bytes(bytes(100))
    assert digest.sampled_digest(paths[0]) != one
    paths[1].unlink()
    with pytest.raises(FileError, match=r"00002-of-00003\.gguf: No such file"):
        digest.sampled_digest(paths[0])


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf",
                                  "m-00001-of-99999.gguf", "m-1-of-2.gguf"])  # fmt: skip
def test_names_that_only_look_like_parts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"x")
    same = tmp_path / "m.gguf"
    same.write_bytes(b"x")
    assert digest.sampled_digest(path) == digest.sampled_digest(same)


def test_progress_rises_to_the_end(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    shares: list[float] = []
    digest.full_digest(path, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) == 9


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for function in (digest.sampled_digest, digest.full_digest):
        with pytest.raises(FileError, match=r"cannot read .*: No such file"):
            function(tmp_path / "none.gguf")
        with pytest.raises(FileError, match="is not a regular file"):
            function(tmp_path)
    if os.name == "posix":
        pipe = tmp_path / "pipe.gguf"
        os.mkfifo(pipe)
        with pytest.raises(FileError, match="is not a regular file"):
            digest.sampled_digest(pipe)
