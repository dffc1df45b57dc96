"""Hostile and broken GGUF files: each is refused with its own message, fast and in little memory.

The files come from gguf_corpus.py; they are opened in a process of their own, where a crash or a
hang is seen as one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from gguf_bytes import ARRAY, BOOL, STRING, U8, Gguf, raw_kv, u32, u64
from gguf_cases import Case, base
from gguf_corpus import bad_files, good_files, part_name, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import FileError, FormatError, LocalLLMError, UnsupportedError
from localllm.store.inspect import GgufFile

OPENER = Path(__file__).with_name("open_gguf_files.py")
FULL = os.environ.get("FULL") == "1"
MAX_MS, MAX_GROWTH_MIB = 50, 32
MARGIN = 3  # for machines that are slower than the one the bars were set on


@dataclass
class Opened:
    case: Case
    path: Path
    error: str
    message: str
    ms: float


def open_in_subprocess(paths: list[Path]) -> tuple[list[dict[str, object]], float]:
    """What came of each path, and how far the peak of the resident set grew, in MiB."""
    done = subprocess.run(
        [sys.executable, str(OPENER)],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    at = paths[len(lines)] if len(lines) < len(paths) else "the end"
    assert done.returncode == 0, f"status {done.returncode} at {at}: {done.stderr[-2000:]}"
    return lines[:-1], lines[-1]["growth_mib"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Opened], float]:
    root = tmp_path_factory.mktemp("corpus")
    cases = bad_files()
    paths = [write(case, root / case.name) for case in cases]
    lines, growth_mib = open_in_subprocess(paths)
    results = {
        case.name: Opened(case, path, str(line["error"]), str(line["message"]), float(line["ms"]))
        for case, path, line in zip(cases, paths, lines, strict=True)
    }
    return results, growth_mib


def test_corpus_is_large_and_has_no_name_twice() -> None:
    names = [case.name for case in good_files() + bad_files()]
    assert len(set(names)) == len(names)
    assert len(bad_files()) >= 100


@pytest.mark.parametrize("name", [case.name for case in bad_files()])
def test_refused_with_its_message(name: str, opened: tuple[dict[str, Opened], float]) -> None:
    result = opened[0][name]
    assert result.error == result.case.error, result.message
    for text in result.case.says:
        assert text in result.message
    assert str(result.path.parent) in result.message  # the part at fault may be another
    assert len(result.message) < 1500
    assert result.message.isprintable()
    assert result.ms <= MAX_MS * MARGIN


def test_memory_of_all_refusals(
    opened: tuple[dict[str, Opened], float], figures: Callable[[str], None]
) -> None:
    results, growth_mib = opened
    worst = max(results.values(), key=lambda r: r.ms)
    figures(
        f"{len(results)} malformed GGUF files: all refused, slowest {worst.ms:.1f} ms "
        f"({worst.case.name}, bar {MAX_MS}), memory + {growth_mib:.1f} MiB (bar {MAX_GROWTH_MIB})"
    )
    assert growth_mib <= MAX_GROWTH_MIB


# ---- Claims that only a huge file could make good ---------------------------------------------


def _sparse_heads() -> dict[str, bytes]:
    return {
        "values": Gguf(n_values=2**31).head(),
        "tensors": Gguf(n_tensors=2**31).head(),
        "values-at-limit": Gguf(n_values=65536).head(),
        "strings": Gguf([raw_kv(b"s", ARRAY, u32(STRING) + u64(2**31))]).head(),
        "strings-at-limit": Gguf(
            [raw_kv(b"s", ARRAY, u32(STRING) + u64(2**22))], n_values=2
        ).head(),
        "bools": Gguf([raw_kv(b"b", ARRAY, u32(BOOL) + u64(2**31))]).head(),
        "numbers": Gguf([raw_kv(b"n", ARRAY, u32(U8) + u64(2**32))], n_values=2).head(),
        "string": Gguf([raw_kv(b"t", STRING, u64(2**32))], n_values=2).head(),
    }


def test_sparse_files_of_64_gib(tmp_path: Path) -> None:
    paths = []
    for name, head in _sparse_heads().items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(head)
        try:
            os.truncate(path, 2**36)
        except OSError as e:
            pytest.skip(f"no sparse files here: {e}")
        paths.append(path)
    lines, growth_mib = open_in_subprocess(paths)
    for line in lines:
        assert line["error"] == "FormatError", line
        assert float(str(line["ms"])) <= MAX_MS * MARGIN, line
    # 2^22 strings of no bytes are 32 MiB of the mapped file itself.
    assert growth_mib <= MAX_GROWTH_MIB + 8


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="pipe"):
        GgufFile(pipe)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    with pytest.raises(FileError, match="loop"):
        GgufFile(loop)


def test_parts_behind_symbolic_links(tmp_path: Path) -> None:
    """The Hub's cache keeps a set's files under other names, with links to them."""
    case = next(c for c in good_files() if c.name == "split-opened-by-2")
    blobs, links = tmp_path / "blobs", tmp_path / "links"
    blobs.mkdir()
    links.mkdir()
    for i, (name, content) in enumerate(case.files.items()):
        (blobs / f"sha-{i}").write_bytes(content or b"")
        (links / name).symlink_to(blobs / f"sha-{i}")
    with GgufFile(links / part_name(1, 3)) as file:
        assert file.n_parts == 3


# ---- Random damage ----------------------------------------------------------------------------


def _write_anew(path: Path, content: bytes) -> None:
    """Some file systems wait for the disk when a file is cut to nothing and written again."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _open_damaged(path: Path, content: bytes) -> None:
    _write_anew(path, content)
    try:
        with GgufFile(path) as file:
            file.tensors()
            dict(file.metadata)
            for info in file.tensors():
                assert file.tensor_bytes(info.name).nbytes == info.n_bytes
    except (FileError, FormatError, UnsupportedError) as e:
        assert str(path) in e.message


@settings(
    max_examples=5_000 if FULL else 1_000,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_files_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of a good file changed, cut out or put in: it opens or says why not."""
    content = bytearray(data.draw(st.sampled_from(_GOOD)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        damage = data.draw(st.sampled_from(("flip", "set", "word", "cut", "insert", "end")))
        if damage == "flip" and content:
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif damage == "set" and content:
            content[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
        elif damage == "word":
            content[at : at + 8] = u64(data.draw(st.sampled_from(_WORDS)))
        elif damage == "cut":
            del content[at : at + data.draw(st.integers(1, 16))]
        elif damage == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
        else:
            del content[at:]
    _open_damaged(tmp_path / "damaged.gguf", bytes(content))


_WORDS = (0, 1, 2**31, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
_GOOD = [
    content
    for case in good_files()
    for content in case.files.values()
    if content is not None and len(content) < 4096
]


def test_every_single_byte_cut_and_flip(tmp_path: Path) -> None:
    """All truncations of a small file, and each of its bytes set to other values."""
    whole = base().build()
    path = tmp_path / "one.gguf"
    for n in range(1, len(whole)):
        _write_anew(path, whole[:n])
        with pytest.raises((FormatError, UnsupportedError)):
            GgufFile(path)
    values = range(256) if FULL else (0, 1, 0x20, 0x80, 0xFF)
    for at in range(len(whole) - 128):
        for value in values:
            _open_damaged(path, whole[:at] + bytes([value]) + whole[at + 1 :])


def test_parts_of_damaged_sets(tmp_path: Path) -> None:
    case = next(c for c in good_files() if c.name == "split-opened-by-1")
    rng = random.Random(2)
    for _ in range(2000 if FULL else 300):
        for name, content in case.files.items():
            damaged = bytearray(content or b"")
            if rng.random() < 0.5:
                damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 2, 3, 255))
            _write_anew(tmp_path / name, bytes(damaged))
        try:
            with GgufFile(tmp_path / case.opened) as file:
                assert len(file.tensors()) == 3
        except LocalLLMError as e:
            assert str(tmp_path) in e.message
