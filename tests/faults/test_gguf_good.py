"""Good GGUF files open, and say what the `gguf` package's reader says of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import I32, STRING, Gguf, array, kv, string, u32, u64
from gguf_cases import Case
from gguf_corpus import good_files, write

from localllm.errors import ArgumentError, FormatError
from localllm.store.inspect import GgufFile, Value

GOOD = good_files()
FULL = os.environ.get("FULL") == "1"


def assert_same_value(ours: Value, field: Any, key: str) -> None:
    """Compares with a ReaderField, whose parts are numpy arrays."""
    if field.types[0] == gguf.GGUFValueType.ARRAY:
        if field.types[-1] == gguf.GGUFValueType.STRING:
            assert ours == [bytes(field.parts[i]) for i in field.data], key
        else:
            theirs = np.asarray([field.parts[i][0] for i in field.data])
            if not theirs.size:  # the package does not keep the type of an empty array
                assert len(ours) == 0, key
                return
            assert isinstance(ours, np.ndarray), key
            assert ours.dtype == theirs.dtype, key
            assert np.array_equal(ours, theirs, equal_nan=theirs.dtype.kind == "f"), key
    elif field.types[0] == gguf.GGUFValueType.STRING:
        assert ours == bytes(field.parts[field.data[0]]).decode("utf-8", "replace"), key
    else:
        theirs = field.parts[field.data[0]][0]
        assert type(ours) is type(theirs.item()), key
        assert ours == theirs.item(), key


def assert_same_file(path: Path) -> None:
    """All values and all tensors, bytes included."""
    theirs = gguf.GGUFReader(path)
    with GgufFile(path) as ours:
        assert ours.version == int(theirs.fields["GGUF.version"].parts[-1][0])
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        assert len(ours.metadata) == len(fields)
        for key, field in fields.items():
            assert_same_value(ours.metadata[key], field, key)
        assert [t.name for t in ours.tensors()] == [t.name for t in theirs.tensors]
        for info, tensor in zip(ours.tensors(), theirs.tensors, strict=True):
            assert info.shape == tuple(int(d) for d in tensor.shape)
            assert info.type == tensor.tensor_type.name
            assert info.n_bytes == tensor.n_bytes
            assert ours.tensor_bytes(info.name).tobytes() == tensor.data.tobytes()
        assert ours.n_params == sum(int(t.n_elements) for t in theirs.tensors)


# The package's reader reads one file of a set, and no tensor without dimensions.
_ONLY_OURS = {"dims-0"}


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_same_as_the_gguf_package(case: Case, tmp_path: Path) -> None:
    path = write(case, tmp_path)
    with GgufFile(path) as file:
        assert file.n_parts == len(case.files)
        assert file.file_bytes == sum(len(c or b"") for c in case.files.values())
    if len(case.files) == 1 and case.name not in _ONLY_OURS:
        assert_same_file(path)


def test_split_set_is_one_file(tmp_path: Path) -> None:
    case = next(c for c in GOOD if c.name == "split-names-turned")
    write(case, tmp_path)
    for name in case.files:
        with GgufFile(tmp_path / name) as file:
            assert file.architecture == "llama"  # only part 0 says so
            assert [(t.name, t.part) for t in file.tensors()] == [
                (f"part{i}.weight", i) for i in range(3)
            ]
            for i in range(3):
                assert file.tensor_bytes(f"part{i}.weight").tolist() == [i] * 64


def test_no_dimensions_is_one_element(tmp_path: Path) -> None:
    case = next(c for c in GOOD if c.name == "dims-0")
    with GgufFile(write(case, tmp_path)) as file:
        assert [(t.shape, t.n_elements, t.n_bytes) for t in file.tensors()] == [((), 1, 4)]


@pytest.mark.parametrize("name", ["smollm2:135m", "gemma3:270m"])
def test_real_models(
    name: str, real_model: Callable[[str], Path], figures: Callable[[str], None]
) -> None:
    path = real_model(name)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        GgufFile(path).close()
        seconds.append(time.perf_counter() - start)
    figures(f"{name}: GGUF opened and checked in {min(seconds) * 1e3:.2f} ms")
    # The package's reader takes many seconds for a large vocabulary.
    if FULL or name == "smollm2:135m":
        assert_same_file(path)


def test_a_large_vocabulary_opens_in_time(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """260,000 tokens and 500,000 merges: the bar is 50 ms."""
    tokens = b"".join(string(b"token%d" % i) for i in range(260_000))
    merges = b"".join(string(b"left%d right%d" % (i, i // 2)) for i in range(500_000))
    file = Gguf(
        [
            string(b"tokens") + u32(9) + u32(STRING) + u64(260_000) + tokens,
            string(b"merges") + u32(9) + u32(STRING) + u64(500_000) + merges,
        ]
    )
    path = tmp_path / "large.gguf"
    path.write_bytes(file.build())
    times = []
    for _ in range(5):
        start = time.process_time()
        with GgufFile(path) as opened:
            times.append(time.process_time() - start)
            assert len(opened.metadata) == 2
    figures(f"260k tokens and 500k merges parsed in {min(times) * 1e3:.1f} ms (bar: 50)")
    assert min(times) <= 0.050 * 5
    with GgufFile(path) as opened:
        words = opened.metadata["merges"]
        assert isinstance(words, list)
        assert (len(words), words[-1]) == (500_000, b"left499999 right249999")


# ---- GgufFile itself --------------------------------------------------------------------------


def _open(tmp_path: Path, *values: bytes) -> GgufFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(Gguf(list(values)).build())
    return GgufFile(path)


def test_metadata_is_a_mapping(tmp_path: Path) -> None:
    with _open(tmp_path, kv(b"a", STRING, b"x"), array(b"b", I32, [1, 2])) as file:
        assert "a" in file.metadata
        assert "A" not in file.metadata
        assert "a\0" not in file.metadata
        assert "\u00e9" not in file.metadata
        assert 1 not in file.metadata
        assert file.metadata.get("c", 7) == 7
        with pytest.raises(KeyError):
            file.metadata["c"]
        with pytest.raises(KeyError):
            file.metadata.type_of("c")
        assert file.metadata.type_of("a") == "string"
        assert file.metadata.type_of("b") == "i32[]"
        numbers = file.metadata["b"]
        assert isinstance(numbers, np.ndarray)
        assert numbers is file.metadata["b"]
        with pytest.raises(ValueError, match="read-only"):
            numbers[0] = 5
    assert numbers.tolist() == [1, 2]  # outlives the file


def test_closed_file_says_so(tmp_path: Path) -> None:
    file = _open(tmp_path, kv(b"a", STRING, b"x"))
    file.close()
    file.close()
    with pytest.raises(ArgumentError, match="closed"):
        file.metadata["a"]
    with pytest.raises(ArgumentError, match="closed"):
        file.tensors()


def test_architecture_and_quantization(tmp_path: Path) -> None:
    named = kv(b"general.architecture", STRING, b"qwen3")
    with _open(tmp_path, named, kv(b"general.file_type", 4, 15)) as file:
        assert (file.architecture, file.quantization, file.n_params) == ("qwen3", "Q4_K_M", 0)
    with _open(tmp_path, kv(b"general.file_type", 4, 1024 + 7)) as file:
        assert file.quantization == "Q8_0"
        with pytest.raises(FormatError, match=r"general\.architecture"):
            _ = file.architecture
    with _open(tmp_path, kv(b"general.architecture", 4, 1)) as file:
        with pytest.raises(FormatError, match=r"general\.architecture"):
            _ = file.architecture
        assert file.quantization == ""


def test_quantization_by_bytes(tmp_path: Path) -> None:
    case = next(c for c in GOOD if c.name == "base")
    with GgufFile(write(case, tmp_path)) as file:
        assert file.quantization == "Q8_0"
        assert file.bytes_by_type() == {"Q8_0": 68, "F32": 32}
        assert (file.n_params, file.weight_bytes) == (72, 100)
        with pytest.raises(ArgumentError, match="no tensor is called"):
            file.tensor_bytes("c.weight")


def test_file_types_are_llama_cpps() -> None:
    from localllm.store import inspect

    theirs = {
        int(t): t.name.replace("MOSTLY_", "").replace("ALL_", "")
        for t in gguf.LlamaFileType
        if t != gguf.LlamaFileType.GUESSED
    }
    assert theirs == inspect._FILE_TYPES
