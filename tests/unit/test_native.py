"""The door to the C engine: arrays and strings are checked, statuses become exceptions."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from localllm import errors, native


def test_array_in_points_to_the_elements() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    pointer = native.array_in(array, np.int32, 6, name="tokens")
    assert list(pointer) == [0, 1, 2, 3, 4, 5]
    assert native.ffi.typeof(pointer).item.cname == "int32_t"


def test_array_out_writes_into_the_array() -> None:
    array = np.zeros(3, dtype=np.float32)
    native.array_out(array, np.float32, 3, name="logits")[1] = 2.5
    assert array.tolist() == [0.0, 2.5, 0.0]


def test_the_pointer_keeps_the_array_alive() -> None:
    array = np.arange(4, dtype=np.int64)
    alive = weakref.ref(array)
    pointer = native.array_in(array, np.int64, name="offsets")
    del array
    gc.collect()
    assert alive() is not None
    assert list(pointer) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float32])
def test_every_element_type_of_the_header(dtype: type) -> None:
    array = np.array([3, 1], dtype=dtype)
    assert list(native.array_out(array, dtype, 2, name="x")) == [3, 1]


def test_an_empty_array_is_allowed() -> None:
    assert len(native.array_in(np.zeros(0, np.int32), np.int32, 0, name="x")) == 0


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4, np.int64), "tokens has elements of type int64, expected int32"),
        (np.zeros(4, np.uint32), "tokens has elements of type uint32, expected int32"),
        (np.zeros(4, ">i4"), "tokens has elements of type >i4, expected int32"),
        (np.zeros(8, np.int32)[::2], r"tokens \(shape \(4,\)\) is not contiguous"),
        (np.zeros((4, 1, 2), np.int32)[:, :, 0], "is not contiguous"),
        (np.zeros(5, np.int32), "tokens has 5 elements, expected 4"),
        (np.zeros(3, np.int32), "tokens has 3 elements, expected 4"),
        ([1, 2, 3, 4], "tokens must be a numpy array of int32, not list"),
        (None, "tokens must be a numpy array of int32, not NoneType"),
    ],
)
def test_wrong_arrays_are_refused_both_ways(array: Any, message: str) -> None:
    for check in (native.array_in, native.array_out):
        with pytest.raises(errors.ArgumentError, match=message):
            check(array, np.int32, 4, name="tokens")


def test_a_read_only_array_is_for_reading_only() -> None:
    array = np.arange(3, dtype=np.int32)
    array.flags.writeable = False
    assert list(native.array_in(array, np.int32, name="x")) == [0, 1, 2]
    with pytest.raises(errors.ArgumentError, match="x is read-only"):
        native.array_out(array, np.int32, name="x")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("LLM_E_IO", errors.FileError),
        ("LLM_E_FORMAT", errors.FormatError),
        ("LLM_E_UNSUPPORTED", errors.UnsupportedError),
        ("LLM_E_ARGUMENT", errors.ArgumentError),
        ("LLM_E_MEMORY", errors.OutOfMemoryError),
        ("LLM_E_CANCELLED", errors.CancelledError),
    ],
)
def test_each_status_has_its_exception(name: str, kind: type[errors.LocalLLMError]) -> None:
    err = native.new_error()
    err.message = "what failed: größer als 7".encode()
    with pytest.raises(errors.LocalLLMError) as caught:
        native.check(getattr(native.lib, name), err, hint="try 6")
    assert type(caught.value) is kind
    assert caught.value.message == str(caught.value) == "what failed: größer als 7"
    assert caught.value.hint == "try 6"


def test_every_status_of_the_header_is_mapped() -> None:
    statuses = native.ffi.typeof("llm_status").relements
    assert set(errors.BY_STATUS) == set(statuses.values()) - {native.lib.LLM_OK}


def test_ok_raises_nothing_and_an_unknown_status_is_still_an_error() -> None:
    native.check(native.lib.LLM_OK, native.new_error())
    with pytest.raises(errors.LocalLLMError, match="native status 99"):
        native.check(99, native.new_error())


def test_call_hands_over_an_error_struct_and_raises_its_message(tmp_path: Any) -> None:
    missing = tmp_path / "größe.gguf"
    out = native.ffi.new("llm_gguf **")
    with pytest.raises(errors.FileError, match=r"größe\.gguf"):
        native.call(native.lib.llm_gguf_open, native.path_bytes(missing), out)


def test_create_frees_the_object_with_its_last_reference() -> None:
    freed = []

    def make(value: int, out: Any, err: Any) -> int:
        out[0] = native.ffi.cast("llm_gguf *", value)
        return int(native.lib.LLM_OK)

    made = native.create(
        "llm_gguf *", make, lambda p: freed.append(int(native.ffi.cast("intptr_t", p))), 64
    )
    assert freed == []
    del made
    gc.collect()
    assert freed == [64]


def test_create_owns_nothing_after_a_failure() -> None:
    freed = []

    def fail(out: Any, err: Any) -> int:
        err.message = b"refused"
        return int(native.lib.LLM_E_MEMORY)

    with pytest.raises(errors.OutOfMemoryError, match="refused"):
        native.create("llm_gguf *", fail, freed.append)
    gc.collect()
    assert freed == []


def test_strings_to_c() -> None:
    assert native.utf8("ħ🦙", name="key") == "ħ🦙".encode()
    with pytest.raises(errors.ArgumentError, match="key holds a NUL character at index 1"):
        native.utf8("a\0b", name="key")
    with pytest.raises(errors.ArgumentError, match="key holds half of a surrogate pair at index 2"):
        native.utf8("ab\ud83e", name="key")


def test_paths_keep_bytes_that_are_not_utf8() -> None:
    assert native.path_bytes("/tmp/\udcff.gguf") == b"/tmp/\xff.gguf"
    with pytest.raises(errors.ArgumentError, match="NUL"):
        native.path_bytes("/tmp/a\0b")


def test_strings_from_c() -> None:
    raw = native.ffi.new("char[]", b"caf\xc3\xa9 \xff")
    assert native.text(raw) == "café \ufffd"
    assert native.text(raw, 3) == "caf"
    assert native.text(native.ffi.new("char[]", b"a\0b"), 3) == "a\0b"


def test_the_header_reached_python_as_it_is() -> None:
    assert native.lib.LLM_BLOCK_TOKENS == 32
    assert native.ffi.sizeof("llm_error") == 4 + native.lib.LLM_ERROR_BYTES
    assert native.lib.LLM_GGUF_F64 == 12
