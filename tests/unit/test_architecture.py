"""The architecture of a file without the engine, and the list of those that our engine runs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import small_models

from localllm.errors import UnsupportedError
from localllm.store.architecture import NATIVE, engine_of, read_architecture


def test_list_is_that_of_the_engine(tmp_path: Path) -> None:
    """The engine names what it has when it is given something else."""
    from localllm.engine.runner import Model

    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf(architecture="mamba"))
    with pytest.raises(UnsupportedError) as e:
        Model.load(path, n_threads=1)
    said = f"{e.value.message} {e.value.hint or ''}"
    assert "mamba" in said
    assert all(name in said for name in NATIVE)
    known = said[min(said.index(name) for name in NATIVE) :]
    assert {word.strip(" ,.") for word in known.split(",")} == NATIVE


def test_real_files(tiny: Callable[[str, str], Path], tmp_path: Path) -> None:
    for name in sorted(NATIVE):
        assert read_architecture(tiny(name, "F32")) == name
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf(architecture="mamba"))
    assert read_architecture(path) == "mamba"


def header(key: bytes, kind: int, length: int, value: bytes) -> bytes:
    return (
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key))
        + key
        + struct.pack("<IQ", kind, length)
        + value
    )


KEY = b"general.architecture"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"\x00" * 500,
        header(KEY, 8, 5, b"lla"),
        header(KEY, 8, 1 << 63, b"llama"),
        header(KEY, 8, 65, b"x" * 65),
        header(KEY, 9, 5, b"llama"),
        header(KEY, 8, 5, b"ll\xff\xffa"),
        header(b"general.name", 8, 5, b"llama"),
        header(KEY, 8, 5, b"llama").replace(b"GGUF", b"GGML"),
    ],
)
def test_anything_else_is_not_known(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert read_architecture(path) == ""
    assert read_architecture(tmp_path / "none") == ""


def test_good_header(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(KEY, 8, 5, b"llama"))
    assert read_architecture(path) == "llama"


def test_engine() -> None:
    assert engine_of("gemma3") == "native"
    assert engine_of("mamba") == "llama.cpp"
    assert engine_of("") is None
