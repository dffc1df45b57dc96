"""Writes GGUF files field by field, so that any field can be wrong.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: bytes, length: int | None = None) -> bytes:
    """A string, whose stated length may differ from the true one."""
    return u64(len(text) if length is None else length) + text


def scalar(kind: int, value: float | bytes) -> bytes:
    if isinstance(value, bytes):
        return string(value)
    return struct.pack(SCALARS[kind], value)


def kv(key: bytes, kind: int, value: float | bytes) -> bytes:
    """A key with a value of type `kind`; bytes for a string."""
    return string(key) + u32(kind) + scalar(kind, value)


def raw_kv(key: bytes, kind: int, payload: bytes, key_length: int | None = None) -> bytes:
    return string(key, key_length) + u32(kind) + payload


def array(
    key: bytes, kind: int, items: list[float] | list[bytes], count: int | None = None
) -> bytes:
    """A key with an array, whose stated count may differ from the true one."""
    payload = b"".join(scalar(kind, item) for item in items)
    return raw_kv(key, ARRAY, u32(kind) + u64(len(items) if count is None else count) + payload)


def tensor(
    name: bytes, dims: list[int], kind: int = 0, offset: int = 0, *, n_dims: int | None = None
) -> bytes:
    """One record of the tensor list; dims[0] is the contiguous one."""
    head = string(name) + u32(len(dims) if n_dims is None else n_dims)
    return head + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


@dataclass
class Gguf:
    """A file in the making. Stated counts follow the lists unless they are set."""

    values: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    alignment: int = 32
    n_values: int | None = None
    n_tensors: int | None = None
    magic: bytes = b"GGUF"

    def head(self) -> bytes:
        """Everything before the padding that precedes the data section."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_values = len(self.values) if self.n_values is None else self.n_values
        counts = u64(n_tensors) + u64(n_values)
        body = b"".join(self.values) + b"".join(self.tensors)
        return self.magic + u32(self.version) + counts + body

    def build(self) -> bytes:
        head = self.head()
        return head + bytes(-len(head) % self.alignment) + self.data if self.data else head
