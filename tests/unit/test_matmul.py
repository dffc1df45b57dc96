"""Matrix products through the public header: the scalar kernels against the operand contract
written in NumPy, the other instruction sets and layouts against the scalar ones bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from localllm.errors import ArgumentError, UnsupportedError
from localllm.native import array_in, array_out, call, create, ffi, lib, text, utf8

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

SCALE_FIELDS = {  # offsets of d, and of dmin or m, in a block
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
    "MXFP4": (0,),
}
FLOATS = ("F32", "F16", "BF16")
GROUP = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16}  # elements that share a scale, else 32


def random_weights(type_name: str, n_rows: int, n_cols: int, seed: int) -> Bytes:
    rng = np.random.default_rng(seed)
    if type_name in FLOATS:
        w = rng.standard_normal((n_rows, n_cols)).astype(np.float32)
        if type_name == "F32":
            return w.view(np.uint8)
        if type_name == "F16":
            return np.asarray(w.astype(np.float16).view(np.uint8))
        return np.asarray((w.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    blocks = rng.integers(0, 256, (n_rows * n_cols // elements, size), dtype=np.uint8)
    for at in SCALE_FIELDS[type_name]:
        if type_name == "MXFP4":
            blocks[:, at] = rng.integers(120, 130, len(blocks))
        else:
            d = rng.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = d.reshape(-1, 1).view(np.uint8)
    return blocks.reshape(n_rows, -1)


def fma(a: Any, b: Any, c: Any) -> Floats:
    """Rounded once: the product is exact in 80 bits, and so, nearly always, is the sum."""
    wide = np.longdouble
    return np.asarray(wide(a) * wide(b) + wide(c), np.float32)


def quantize_activations(x: Floats, block: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """s8 values [n][k / block][block] and scales [n][k / block]."""
    blocks = x.reshape(len(x), -1, block)
    amax = np.abs(blocks).max(-1)
    inverse = np.float32(127) / amax
    q = np.rint(blocks * inverse[..., None]).astype(np.int64)
    return q, amax / np.float32(127)


def split_weights(
    raw: Bytes, type_name: str
) -> tuple[Floats, Floats | None, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """d, dmin (or m) [rows][blocks]; s_g (q - z), and m_g, [rows][blocks][elements].

    The `gguf` package gives the integers: dequantized with d = 1 and dmin = 0, or the reverse.
    """
    kind = GGMLQuantizationType[type_name]
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = raw.reshape(len(raw), -1, size)

    def with_scales(*values: float) -> Floats:
        changed = blocks.copy()
        for at, value in zip(SCALE_FIELDS[type_name], values, strict=False):
            if type_name == "MXFP4":
                changed[..., at] = 128 if value else 0
            else:
                changed[..., at : at + 2] = np.array([value], np.float16).view(np.uint8)
        w = dequantize(changed.reshape(len(raw), -1), kind)
        return w.reshape(len(raw), -1, elements)

    def field(at: int) -> Floats:
        if type_name == "MXFP4":
            return np.asarray(np.ldexp(np.float32(1), blocks[..., at].astype(np.int32) - 128))
        return np.asarray(blocks[..., at : at + 2].copy().view(np.float16)[..., 0], np.float32)

    fields = SCALE_FIELDS[type_name]
    second = field(fields[1]) if len(fields) == 2 else None
    mins = with_scales(0.0, 1.0) if second is not None else np.zeros_like(with_scales(1.0))
    return field(fields[0]), second, with_scales(1.0, 0.0).astype(np.int64), mins.astype(np.int64)


def expected_product(raw: Bytes, type_name: str, x: Floats) -> Floats:
    """[n][n_rows] by docs/ARITHMETIC.md."""
    y = np.zeros((len(x), len(raw)), np.float32)
    kind = GGMLQuantizationType[type_name]
    if type_name in FLOATS:
        w = dequantize(raw, kind).astype(np.float32)
        for k in range(w.shape[1]):
            y = fma(w[None, :, k], x[:, k, None], y)
        return y
    block = GGML_QUANT_SIZES[kind][0]
    q, d_a = quantize_activations(x, block)
    d, second, weights, mins = split_weights(raw, type_name)
    for b in range(d.shape[1]):
        scale = d[None, :, b] * d_a[:, b, None]
        if block == 32:
            y = fma(scale, np.float32(q[:, b] @ weights[:, b].T), y)
            if second is not None:
                total = d_a[:, b, None] * q[:, b].sum(-1, keepdims=True).astype(np.float32)
                y = fma(second[None, :, b], total, y)
            continue
        group = GROUP.get(type_name, 32)
        total = np.zeros_like(y)
        for g in range(0, 256, group):
            part = q[:, b, g : g + group] @ weights[:, b, g : g + group].T
            total = fma(1, part, total)
        y = fma(scale, total, y)
        if second is not None:
            min_scale = -second[None, :, b] * d_a[:, b, None]
            y = fma(min_scale, np.float32(-(q[:, b] @ mins[:, b].T)), y)
    return y


class Product:
    """One matrix held by the engine."""

    def __init__(self, raw: Bytes, type_name: str, n_cols: int, raw_weights: bool = False) -> None:
        self.n_rows = len(raw)
        self.weight = create(
            "llm_op_weight *",
            lib.llm_op_weight_create,
            lib.llm_op_weight_free,
            int(GGMLQuantizationType[type_name]),
            array_in(np.ascontiguousarray(raw), np.uint8, name="raw"),
            raw.size,
            self.n_rows,
            n_cols,
            int(raw_weights),
        )

    def __call__(self, x: Floats, isa: str, n_threads: int = 1) -> Floats:
        y = np.empty((len(x), self.n_rows), np.float32)
        threads = create(
            "llm_threads *", lib.llm_threads_create, lib.llm_threads_destroy, n_threads
        )
        call(
            lib.llm_op_matmul,
            threads,
            ffi.new("char[]", utf8(isa, name="isa")),
            self.weight,
            array_in(x, np.float32, name="x"),
            len(x),
            array_out(y, np.float32, name="y"),
            1,
            ffi.NULL,
        )
        return y


def isas() -> list[str]:
    return [text(lib.llm_isa_name(i)) for i in range(lib.llm_n_isas())]


@pytest.mark.parametrize("type_name", [*FLOATS, *SCALE_FIELDS])
def test_product_equals_the_operand_contract(type_name: str) -> None:
    n_rows, n_cols, n = 20, 512 if type_name.endswith(("_K", "XS")) else 288, 6
    raw = random_weights(type_name, n_rows, n_cols, seed=2)
    x = np.random.default_rng(3).standard_normal((n, n_cols)).astype(np.float32)
    expected = expected_product(raw, type_name, x)
    exact = x.astype(np.float64) @ dequantize(raw, GGMLQuantizationType[type_name]).T
    assert np.abs(expected - exact).max() < 0.02 * np.abs(exact).max()  # the contract makes sense
    for isa, raw_weights, n_threads in itertools.product(isas(), (False, True), (1, 2)):
        y = Product(raw, type_name, n_cols, raw_weights)(x, isa, n_threads)
        assert np.array_equal(y.view(np.uint32), expected.view(np.uint32)), (isa, raw_weights)


def test_unusable_instruction_set_is_refused() -> None:
    product = Product(random_weights("Q4_0", 4, 32, seed=1), "Q4_0", 32)
    with pytest.raises(UnsupportedError, match="avx1024"):
        product(np.ones((1, 32), np.float32), "avx1024")


@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (4, 33), (4, 64), (-1, 32), (2**40, 32)])
def test_bad_shapes_are_refused(shape: tuple[int, int]) -> None:
    raw = random_weights("Q4_0", 4, 32, seed=1)
    with pytest.raises(ArgumentError):
        create(
            "llm_op_weight *",
            lib.llm_op_weight_create,
            lib.llm_op_weight_free,
            int(GGMLQuantizationType.Q4_0),
            array_in(raw.reshape(-1), np.uint8, name="raw"),
            raw.size,
            *shape,
            0,
        )


@pytest.mark.parametrize(
    ("roof", "order"),
    [
        ("llm_roof_int8", ("scalar", "avx2", "avx512")),
        ("llm_roof_f32", ("scalar", "avx2")),  # some CPUs halve AVX-512
    ],
)
def test_roofs_of_products_grow_with_the_instruction_set(roof: str, order: tuple[str, ...]) -> None:
    """A forced instruction set is the one that ran: the wider ones do more work per second."""
    threads = create("llm_threads *", lib.llm_threads_create, lib.llm_threads_destroy, 1)
    figure = ffi.new("double *")
    speeds = []
    for isa in [of for of in order if of in isas()]:
        best = 0.0
        for _ in range(3):
            call(getattr(lib, roof), threads, ffi.new("char[]", isa.encode()), figure)
            best = max(best, figure[0])
        speeds.append(best)
    assert all(b > a for a, b in itertools.pairwise(speeds))  # 4 times and more, alone
