"""The table of quantization formats against the `gguf` package's sizes and dequantization."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from localllm.errors import ArgumentError, UnsupportedError
from localllm.native import array_in, array_out, call, create, ffi, lib, path_bytes, text

NATIVE = [
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
]
F16_FIELDS = {  # offsets of the f16 values of a block
    "F16": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
N_BLOCKS = 40_000 if os.environ.get("FULL") else 3_000


def our_dequantize(raw: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    kind = GGMLQuantizationType[type_name]
    elements, size = GGML_QUANT_SIZES[kind]
    out = np.empty(raw.size // size * elements, np.float32)
    call(
        lib.llm_dequantize,
        int(kind),
        array_in(raw, np.uint8, name="raw"),
        raw.size,
        array_out(out, np.float32, name="out"),
        out.size,
    )
    return out


def assert_same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[Any]) -> None:
    """Equal bit for bit, except that a NaN may be any NaN."""
    theirs = np.ascontiguousarray(theirs, np.float32).ravel()
    different = ours.view(np.uint32) != theirs.view(np.uint32)
    different &= ~(np.isnan(ours) & np.isnan(theirs))
    at = np.flatnonzero(different)
    assert at.size == 0, f"element {at[0]}: {ours[at[0]]!r}, expected {theirs[at[0]]!r}"


def random_raw(type_name: str, seed: int) -> npt.NDArray[np.uint8]:
    """Random bytes; a quarter of the f16 fields are zero, subnormal, infinite or NaN."""
    rng = np.random.default_rng(seed)
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    blocks = rng.integers(0, 256, (N_BLOCKS, size), dtype=np.uint8)
    special = np.array(
        [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01], np.uint16
    )
    for at in F16_FIELDS.get(type_name, ()):
        rows = rng.random(N_BLOCKS) < 0.25
        blocks[rows, at : at + 2] = rng.choice(special, rows.sum()).reshape(-1, 1).view(np.uint8)
    return blocks.reshape(-1)


@pytest.mark.parametrize("type_name", NATIVE)
def test_dequantization_equals_the_gguf_package(type_name: str) -> None:
    raw = random_raw(type_name, seed=1)
    with np.errstate(all="ignore"):
        expected = dequantize(raw.reshape(1, -1), GGMLQuantizationType[type_name])
    assert_same_bits(our_dequantize(raw, type_name), expected)


def test_every_half_float_and_bfloat_is_exact() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    assert_same_bits(our_dequantize(bits.view(np.uint8), "F16"), bits.view(np.float16))
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    assert_same_bits(our_dequantize(bits.view(np.uint8), "BF16"), wide)


def test_sizes_equal_the_gguf_package() -> None:
    info = ffi.new("llm_format_info *")
    ours = {}
    for i in range(lib.llm_n_formats()):
        assert lib.llm_format_at(i, info) == lib.LLM_OK
        name = text(info.name)
        assert info.type == GGMLQuantizationType[name]
        ours[name] = (info.block_elements, info.block_bytes, bool(info.native))
    theirs = {t.name: (*GGML_QUANT_SIZES[t], t.name in NATIVE) for t in GGML_QUANT_SIZES}
    assert ours == theirs
    assert lib.llm_format_at(lib.llm_n_formats(), info) == lib.LLM_E_ARGUMENT
    assert lib.llm_format_at(-1, info) == lib.LLM_E_ARGUMENT


@pytest.mark.parametrize("type_number", [-1, 4, 5, 31, 36, 1000, 2**31 - 1])
def test_unknown_types_are_unsupported(type_number: int) -> None:
    info = ffi.new("llm_format_info *")
    assert lib.llm_format_find(type_number, info) == lib.LLM_E_UNSUPPORTED
    assert lib.llm_format_find(int(GGMLQuantizationType.Q6_K), info) == lib.LLM_OK
    assert (text(info.name), info.block_elements, info.block_bytes) == ("Q6_K", 256, 210)


def test_bad_sizes_are_refused() -> None:
    raw, out = np.zeros(144, np.uint8), np.zeros(256, np.float32)
    source, target = ffi.from_buffer("uint8_t[]", raw), ffi.from_buffer("float[]", out)
    q4_k = int(GGMLQuantizationType.Q4_K)
    for n_bytes, n in [(144, 255), (143, 256), (144, 512), (144, -256), (0, 2**62)]:
        with pytest.raises(ArgumentError):
            call(lib.llm_dequantize, q4_k, source, n_bytes, target, n)
    with pytest.raises(UnsupportedError, match="IQ1_S"):
        call(lib.llm_dequantize, int(GGMLQuantizationType.IQ1_S), source, 50, target, 256)
    with pytest.raises(UnsupportedError, match="77"):
        call(lib.llm_dequantize, 77, source, 144, target, 256)


@pytest.mark.parametrize("name", ["smollm2:135m", "gemma3:270m"])
def test_tensors_of_real_models(name: str, real_model: Callable[[str], Path]) -> None:
    path = path_bytes(real_model(name))
    file = create("llm_gguf *", lib.llm_gguf_open, lib.llm_gguf_close, path)
    info = ffi.new("llm_tensor_info *")
    for i in range(0, lib.llm_gguf_n_tensors(file), 7):
        assert lib.llm_gguf_tensor_at(file, i, info) == lib.LLM_OK
        kind = GGMLQuantizationType(info.type)
        n_bytes = min(info.n_bytes, 2000 * GGML_QUANT_SIZES[kind][1])
        raw = np.frombuffer(ffi.buffer(info.data, n_bytes), np.uint8).copy()
        expected = dequantize(raw.reshape(1, -1), kind)
        assert_same_bits(our_dequantize(raw, kind.name), expected)
