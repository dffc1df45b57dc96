"""Which architecture a model has, and which engine runs it, told without loading the engine."""

from __future__ import annotations

import struct
from pathlib import Path

#: The rows of native/src/model/arch.c; a test compares them.
NATIVE = frozenset({"llama", "qwen2", "qwen3", "gemma3"})

_KEY = b"general.architecture"
_HEAD = struct.Struct("<4sIQQQ")  # magic, version, tensors, metadata pairs, length of the first key
_STRING = 8  # enum gguf_metadata_value_type
_LONGEST_NAME = 64


def read_architecture(path: Path) -> str:
    """The name from a GGUF header, "" where it is not the first entry, as writers make it.

    Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD.size + len(_KEY) + 12 + _LONGEST_NAME)
    except OSError:
        return ""
    if len(data) < _HEAD.size + len(_KEY) + 12:
        return ""
    magic, _, _, _, n_key = _HEAD.unpack_from(data)
    at = _HEAD.size + len(_KEY)
    if magic != b"GGUF" or n_key != len(_KEY) or data[_HEAD.size : at] != _KEY:
        return ""
    kind, length = struct.unpack_from("<IQ", data, at)
    name = data[at + 12 : at + 12 + length]  # shorter where the length is out of bounds
    if kind != _STRING or len(name) != length or not name.isascii():
        return ""
    return name.decode("ascii")


def engine_of(architecture: str) -> str | None:
    """The engine that `run` chooses for an architecture, None where that is not known."""
    if not architecture:
        return None
    return "native" if architecture in NATIVE else "llama.cpp"
