"""Vocabularies to test with: the `ggml-vocab-*.gguf` files in the source distribution of
llama-cpp-python (fetched by pip if it is not in .cache/sdist, unpacked to a temporary folder, never
committed) and a small reader of GGUF metadata that shares no code with the program."""

from __future__ import annotations

import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
SDIST = "llama-cpp-python==0.3.36"

_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY, _BOOL = 8, 9, 7


def read_metadata(path: Path) -> dict[str, object]:
    """Key-value pairs of a GGUF file; string arrays as lists of bytes."""
    data = path.read_bytes() if path.stat().st_size < 1 << 26 else path.open("rb").read(1 << 26)
    assert data[:4] == b"GGUF"
    n_keys = struct.unpack_from("<Q", data, 16)[0]
    at = 24

    def string() -> bytes:
        nonlocal at
        n = struct.unpack_from("<Q", data, at)[0]
        at += 8 + n
        return data[at - n : at]

    def scalar(kind: int) -> object:
        nonlocal at
        if kind == _STRING:
            return string().decode()
        dtype = np.dtype(_SCALARS[kind])
        value = np.frombuffer(data, dtype, 1, at)[0].item()
        at += dtype.itemsize
        return bool(value) if kind == _BOOL else value

    out: dict[str, object] = {}
    for _ in range(n_keys):
        key = string().decode()
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        if kind != _ARRAY:
            out[key] = scalar(kind)
            continue
        kind, n = struct.unpack_from("<IQ", data, at)
        at += 12
        if kind == _STRING:
            out[key] = [string() for _ in range(n)]
        else:
            dtype = np.dtype(_SCALARS[kind])
            out[key] = np.frombuffer(data, dtype, n, at)
            at += n * dtype.itemsize
    return out


def _archive() -> Path:
    """The source distribution, fetched if it is not there."""
    folder = CACHE / "sdist"
    archives = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    if not archives:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:",
             "--no-build-isolation", "-d", str(folder), SDIST],
            check=True,
        )  # fmt: skip
        archives = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    return archives[-1]


def sdist_vocabularies(folder: Path) -> dict[str, Path]:
    """The vocabulary files by name ("llama-bpe"), unpacked below `folder` with their vectors."""
    with tarfile.open(_archive()) as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name.startswith("ggml-vocab-"):
                source = archive.extractfile(member)
                assert source is not None
                (folder / name).write_bytes(source.read())
    return {path.stem.removeprefix("ggml-vocab-"): path for path in sorted(folder.glob("*.gguf"))}


def vectors(path: Path) -> list[tuple[str, list[int]]]:
    """The texts and expected ids beside a vocabulary file; empty if it has none."""
    texts = path.with_name(path.name + ".inp")
    if not texts.exists():
        return []
    inputs = texts.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = path.with_name(path.name + ".out").read_text(encoding="utf-8").split("\n")
    outputs = [[int(i) for i in line.split()] for line in lines]
    return list(zip(inputs, outputs, strict=False))


def sdist_templates() -> dict[str, str]:
    """The chat templates that llama.cpp collects, by file name."""
    with tarfile.open(_archive()) as archive:
        out = {}
        for member in archive:
            path = Path(member.name)
            if member.isfile() and path.suffix == ".jinja" and path.parent.name == "templates":
                source = archive.extractfile(member)
                assert source is not None
                out[path.stem] = source.read().decode()
    return out
