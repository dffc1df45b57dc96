"""The door to the C engine: the only importer of the compiled module.

cffi checks neither the element type nor the length of a buffer, so arrays cross only through
`array_in` and `array_out`. Native failures become the exceptions of `localllm.errors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from localllm._native import ffi, lib
from localllm.errors import ArgumentError, error_from_status

__all__ = [
    "CData",
    "array_in",
    "array_out",
    "call",
    "check",
    "create",
    "ffi",
    "lib",
    "new_error",
    "path_bytes",
    "text",
    "utf8",
]

CData: TypeAlias = Any  # cffi's objects have no static type
Array: TypeAlias = npt.NDArray[Any]

_C_TYPES = {
    np.dtype(np.int8): "int8_t[]",
    np.dtype(np.uint8): "uint8_t[]",
    np.dtype(np.int32): "int32_t[]",
    np.dtype(np.int64): "int64_t[]",
    np.dtype(np.uint64): "uint64_t[]",
    np.dtype(np.float32): "float[]",
}


def new_error() -> CData:
    """A fresh `llm_error *` with LLM_OK and an empty message."""
    return ffi.new("llm_error *")


def check(status: int, err: CData, hint: str | None = None) -> None:
    """Raises the exception that belongs to `status`, with the message in `err`."""
    if status != lib.LLM_OK:
        raise error_from_status(status, text(err.message), hint)


def call(function: Callable[..., int], *args: Any) -> None:
    """Calls `function(*args, err)` and raises if its status is not LLM_OK."""
    err = new_error()
    check(function(*args, err), err)


def create(
    c_type: str, function: Callable[..., int], destroy: Callable[[CData], None], *args: Any
) -> CData:
    """Calls `function(*args, out, err)` and returns `*out`, which `destroy` frees when it is no
    longer referenced. `c_type` is the object's pointer type, such as "llm_gguf *".

    `ffi.release(object)` frees it at once. What the object points to on the native side (the gguf
    of a model) must be kept alive by the caller.
    """
    out = ffi.new(f"{c_type}*")
    call(function, *args, out)
    return ffi.gc(out[0], destroy)


def array_in(array: Array, dtype: npt.DTypeLike, size: int | None = None, *, name: str) -> CData:
    """A pointer to the elements of a C-contiguous array that the native side reads.

    `dtype` must match exactly; `size` is the exact number of elements, if it is fixed. The pointer
    keeps the array alive. Raises `ArgumentError`, with `name` in the message.
    """
    return _pointer(array, dtype, size, name, writable=False)


def array_out(array: Array, dtype: npt.DTypeLike, size: int | None = None, *, name: str) -> CData:
    """Like `array_in`, for an array that the native side writes: it must be writable."""
    return _pointer(array, dtype, size, name, writable=True)


def _pointer(
    array: Array, dtype: npt.DTypeLike, size: int | None, name: str, *, writable: bool
) -> CData:
    expected = np.dtype(dtype)
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"{name} must be a numpy array of {expected}, not {type(array).__name__}"
        )
    if array.dtype != expected:
        raise ArgumentError(f"{name} has elements of type {array.dtype}, expected {expected}")
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{name} (shape {array.shape}) is not contiguous in C order")
    if size is not None and array.size != size:
        raise ArgumentError(f"{name} has {array.size} elements, expected {size}")
    if writable and not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only, but results are written to it")
    return ffi.from_buffer(_C_TYPES[expected], array, require_writable=writable)


def utf8(value: str, *, name: str) -> bytes:
    """The UTF-8 bytes of a string for a `const char *`. Raises `ArgumentError` if it holds a NUL
    or half of a surrogate pair."""
    if "\0" in value:
        raise ArgumentError(f"{name} holds a NUL character at index {value.index(chr(0))}")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as e:
        raise ArgumentError(f"{name} holds half of a surrogate pair at index {e.start}") from e


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """A path for a `const char *`: the file system's own bytes (UTF-8 on Windows)."""
    encoded = utf8(os.fspath(path), name="path") if os.name == "nt" else os.fsencode(path)
    if b"\0" in encoded:
        raise ArgumentError("path holds a NUL character")
    return encoded


def text(value: CData, n_bytes: int | None = None) -> str:
    """The string behind a `const char *` or a char array: up to its NUL, or `n_bytes` long.

    Bytes from a file may break UTF-8: those become U+FFFD.
    """
    raw: bytes = ffi.string(value) if n_bytes is None else bytes(ffi.buffer(value, n_bytes))
    return raw.decode("utf-8", errors="replace")
