"""What a GGUF file holds: typed metadata, tensors, sizes. Nothing is copied before it is asked for.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from localllm.errors import ArgumentError, FormatError
from localllm.native import CData, array_out, call, create, ffi, lib, path_bytes, text

__all__ = ["GgufFile", "Metadata", "TensorInfo", "Value"]

#: A metadata value: a number, a bool, a string (bytes that break UTF-8 become U+FFFD), a numpy
#: array of the file's own element type, or for an array of strings their bytes as they are.
Value: TypeAlias = "int | float | bool | str | npt.NDArray[Any] | list[bytes]"

_DTYPES = {
    lib.LLM_GGUF_U8: "u1",
    lib.LLM_GGUF_I8: "i1",
    lib.LLM_GGUF_U16: "<u2",
    lib.LLM_GGUF_I16: "<i2",
    lib.LLM_GGUF_U32: "<u4",
    lib.LLM_GGUF_I32: "<i4",
    lib.LLM_GGUF_F32: "<f4",
    lib.LLM_GGUF_BOOL: "?",
    lib.LLM_GGUF_U64: "<u8",
    lib.LLM_GGUF_I64: "<i8",
    lib.LLM_GGUF_F64: "<f8",
}

# Numbers of `general.file_type`: enum llama_ftype of llama.cpp's include/llama.h.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor. `shape` is in GGUF order: the contiguous dimension comes first."""

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    part: int = 0  # which file of a split set

    @property
    def n_elements(self) -> int:
        n = 1
        for dim in self.shape:
            n *= dim
        return n


class GgufFile:
    """An open GGUF file, or all parts of the split set of which `path` is any part.

    Everything is checked at open; raises `FileError`, `FormatError` or `UnsupportedError`, which
    name the file, the field, the value and the limit. Later too it is a `FileError` where another
    program has cut the file short since. Closed by `close`, by a `with` block, or when it is no
    longer referenced. Not to be used after `close`; arrays and lists stay valid.
    header_only: the tensors' data may be absent, or still on its way, and cannot be had.
    """

    def __init__(self, path: str | os.PathLike[str], *, header_only: bool = False) -> None:
        self.path = os.fspath(path)
        opened = lib.llm_gguf_open_header if header_only else lib.llm_gguf_open
        self._handle: CData | None = create(
            "llm_gguf *", opened, lib.llm_gguf_close, path_bytes(path)
        )
        self.version: int = lib.llm_gguf_version(self._handle)
        self.n_parts: int = lib.llm_gguf_n_parts(self._handle)
        self.file_bytes: int = lib.llm_gguf_file_bytes(self._handle)
        self.metadata = Metadata(self)
        self._tensors: list[TensorInfo] | None = None

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def handle(self) -> CData:
        """The `llm_gguf *`, valid while this object is alive and open."""
        if self._handle is None:
            raise ArgumentError(f"{self.path}: this GGUF file has been closed")
        return self._handle

    def close(self) -> None:
        """Unmaps the file. No model loaded from it may be in use. A second call does nothing."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def check(self) -> None:
        """Raises `FileError` if the file was cut short, so that zeros were read instead of what it
        held."""
        call(lib.llm_gguf_check, self.handle)

    def tensors(self) -> list[TensorInfo]:
        """All tensors, part after part, in the order of the file."""
        if self._tensors is None:
            handle, names = self.handle, _format_names()
            self._tensors = []
            info = ffi.new("llm_tensor_info *")
            for i in range(lib.llm_gguf_n_tensors(handle)):
                lib.llm_gguf_tensor_at(handle, i, info)
                shape = tuple(info.dims[d] for d in range(info.n_dims))
                self._tensors.append(
                    TensorInfo(text(info.name), names[info.type], shape, info.n_bytes, info.part)
                )
        return list(self._tensors)

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A copy of a tensor's raw blocks, uint8 [n_bytes]. Raises `ArgumentError` if there is no
        tensor of that name."""
        i = lib.llm_gguf_find_tensor(self.handle, name.encode("utf-8", "surrogateescape"))
        if i < 0:
            raise ArgumentError(f"{self.path}: no tensor is called {name!r}")
        info = ffi.new("llm_tensor_info *")
        lib.llm_gguf_tensor_at(self.handle, i, info)
        if info.data == ffi.NULL:
            raise ArgumentError(f"{self.path}: only its header was opened")
        blocks: npt.NDArray[np.uint8] = np.frombuffer(
            ffi.buffer(info.data, info.n_bytes), np.uint8
        ).copy()
        self.check()
        return blocks

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises `FormatError` if it is not a string."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise FormatError(f"{self.path}: key 'general.architecture' is not there as a string")
        return name

    @property
    def n_params(self) -> int:
        """Elements of all tensors."""
        return sum(t.n_elements for t in self.tensors())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors())

    @property
    def quantization(self) -> str:
        """The file's own claim (`general.file_type`, such as "Q4_K_M"), or without one the type
        that most weight bytes have; "" for a file without tensors."""
        number = self.metadata.get("general.file_type")
        if isinstance(number, int) and number & ~1024 in _FILE_TYPES:  # 1024: it was guessed
            return _FILE_TYPES[number & ~1024]
        by_type = self.bytes_by_type()
        return max(by_type, key=lambda name: by_type[name], default="")

    def bytes_by_type(self) -> dict[str, int]:
        """Weight bytes of each tensor type, most first."""
        sums: dict[str, int] = {}
        for t in self.tensors():
            sums[t.type] = sums.get(t.type, 0) + t.n_bytes
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


class Metadata(Mapping[str, Value]):
    """The keys and values of a `GgufFile`. A value is decoded when it is first asked for, then
    kept; arrays are read-only."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._decoded: dict[str, Value] = {}

    def __len__(self) -> int:
        return int(lib.llm_gguf_n_values(self._file.handle))

    def __iter__(self) -> Iterator[str]:
        value = ffi.new("llm_gguf_value *")
        for i in range(len(self)):
            lib.llm_gguf_value_at(self._file.handle, i, value)
            yield text(value.key, value.key_bytes)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) >= 0

    def __getitem__(self, key: str) -> Value:
        if key not in self._decoded:
            i = self._find(key)
            if i < 0:
                raise KeyError(key)
            value = self._decode(i)
            self._file.check()
            self._decoded[key] = value
        return self._decoded[key]

    def type_of(self, key: str) -> str:
        """The value's type as the file states it, such as "u32", "string" or "string[]"."""
        i = self._find(key)
        if i < 0:
            raise KeyError(key)
        value = ffi.new("llm_gguf_value *")
        lib.llm_gguf_value_at(self._file.handle, i, value)
        name = _TYPE_NAMES[value.element_type]
        return f"{name}[]" if value.type == lib.LLM_GGUF_ARRAY else name

    def _find(self, key: str) -> int:
        # Keys are printable ASCII; anything else, and a NUL above all, is not among them.
        if not key.isascii() or "\0" in key:
            return -1
        i = int(lib.llm_gguf_find(self._file.handle, key.encode("ascii")))
        if i < 0:
            self._file.check()  # its name may be among what is gone
        return i

    def _decode(self, i: int) -> Value:
        value = ffi.new("llm_gguf_value *")
        lib.llm_gguf_value_at(self._file.handle, i, value)
        if value.element_type == lib.LLM_GGUF_STRING:
            if value.type == lib.LLM_GGUF_ARRAY:
                return self._strings(i, value.count)
            return text(value.data, value.data_bytes)
        raw = ffi.buffer(value.data, value.data_bytes)
        array: npt.NDArray[Any] = np.frombuffer(raw, _DTYPES[value.element_type]).copy()
        if value.type != lib.LLM_GGUF_ARRAY:
            scalar: int | float | bool = array[0].item()
            return scalar
        array.flags.writeable = False
        return array

    def _strings(self, i: int, count: int) -> list[bytes]:
        n_bytes = ffi.new("int64_t *")
        call(lib.llm_gguf_strings, self._file.handle, i, ffi.NULL, ffi.NULL, n_bytes)
        offsets = np.empty(count + 1, np.int64)
        blob = bytearray(max(1, n_bytes[0]))
        call(
            lib.llm_gguf_strings,
            self._file.handle,
            i,
            array_out(offsets, np.int64, name="offsets"),
            ffi.from_buffer("char[]", blob, require_writable=True),
            n_bytes,
        )
        whole, ends = bytes(blob), offsets.tolist()
        return [whole[a:b] for a, b in pairwise(ends)]


_TYPE_NAMES = {
    lib.LLM_GGUF_U8: "u8",
    lib.LLM_GGUF_I8: "i8",
    lib.LLM_GGUF_U16: "u16",
    lib.LLM_GGUF_I16: "i16",
    lib.LLM_GGUF_U32: "u32",
    lib.LLM_GGUF_I32: "i32",
    lib.LLM_GGUF_F32: "f32",
    lib.LLM_GGUF_BOOL: "bool",
    lib.LLM_GGUF_STRING: "string",
    lib.LLM_GGUF_U64: "u64",
    lib.LLM_GGUF_I64: "i64",
    lib.LLM_GGUF_F64: "f64",
}


def _format_names() -> dict[int, str]:
    info = ffi.new("llm_format_info *")
    names = {}
    for i in range(lib.llm_n_formats()):
        lib.llm_format_at(i, info)
        names[int(info.type)] = text(info.name)
    return names
