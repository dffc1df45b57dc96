"""The op table: each weight type times 1 .. 512 activation columns, against the two roofs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gguf
import numpy as np

from benchmarks.report import Key, Row
from benchmarks.roofs import INT8, READ, Threads
from benchmarks.synthetic import random_rows
from localllm import native
from localllm.native import ffi, lib

TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4", "F16", "BF16", "F32",
)  # fmt: skip
COLUMNS = (1, 2, 3, 4, 8, 16, 64, 512)
SMALL = (4096, 4096)  # rows, inputs; its products are many enough for 16 columns and more
LARGE = (16384, 8192)  # for few columns, where reading the weights is what takes time
FLOAT_TYPES = ("F16", "BF16", "F32")


class Weight:
    """A random matrix [n_rows, n_cols] of a type, laid out as a model would hold it."""

    def __init__(self, type_name: str, n_rows: int, n_cols: int) -> None:
        quant = gguf.GGMLQuantizationType[type_name]
        raw = random_rows(quant, n_rows, n_cols, n_cols**-0.5, np.random.default_rng(1)).ravel()
        self.n_rows, self.n_cols, self.n_bytes = n_rows, n_cols, raw.size
        self.handle = native.create(
            "llm_op_weight *", lib.llm_op_weight_create, lib.llm_op_weight_free, quant.value,
            native.array_in(raw, np.uint8, name="src"), raw.size, n_rows, n_cols, 0,
        )  # fmt: skip

    def seconds(self, threads: Threads, n: int, n_reps: int, isa: str | None = None) -> float:
        """The shortest of n_reps products with n columns."""
        x = np.random.default_rng(2).standard_normal((n, self.n_cols), np.float32)
        y = np.empty((n, self.n_rows), np.float32)
        out: Any = ffi.new("double *")
        native.call(
            lib.llm_op_matmul, threads.handle, ffi.new("char[]", isa.encode()) if isa else ffi.NULL,
            self.handle, native.array_in(x, np.float32, name="x"), n,
            native.array_out(y, np.float32, name="y"), n_reps, out,
        )  # fmt: skip
        return float(out[0])


def _test(n: int) -> str:
    return f"matmul {n} column{'s' * (n > 1)}"


def keys(type_name: str, columns: Sequence[int]) -> list[Key]:
    return [(_test(n), type_name) for n in columns]


def measure(
    threads: Threads,
    types: Sequence[str] = TYPES,
    columns: Sequence[int] = COLUMNS,
    isa: str | None = None,
) -> Iterator[Row]:
    """Yields a row per type and column count; roofs are taken beside each type.

    The share is that of whichever roof binds more: what the product would take at least, reading
    its weights once at full bandwidth and computing at the full int8 rate, over what it took.
    """
    for type_name in types:
        for (n_rows, n_cols), several in ((LARGE, False), (SMALL, True)):
            counts = [n for n in columns if (n >= 16) == several]
            if not counts:
                continue
            weight = Weight(type_name, n_rows, n_cols)
            n_bytes = max(weight.n_bytes, 1 << 20)
            before = threads.read_gb_per_s(n_bytes), threads.int8_gop_per_s(isa)
            timed = [(n, weight.seconds(threads, n, 3 if n >= 64 else 7, isa)) for n in counts]
            # The machine is shared: the better of two looks is nearer to what it can do.
            bandwidth = max(before[0], threads.read_gb_per_s(n_bytes))
            rate = max(before[1], threads.int8_gop_per_s(isa))
            for n, seconds in timed:
                ops = 2.0 * n_rows * n_cols * n
                reading, computing = weight.n_bytes / 1e9 / bandwidth, ops / 1e9 / rate
                if type_name in FLOAT_TYPES:
                    computing = 0.0  # no int8 products in these
                memory_bound = reading >= computing
                least = reading if memory_bound else computing
                floats = type_name in FLOAT_TYPES and n >= 16
                yield Row(
                    _test(n), type_name,
                    "GB/s" if memory_bound and not floats else "Gop/s",
                    (weight.n_bytes if memory_bound and not floats else ops) / 1e9 / seconds,
                    roof="" if floats else READ if memory_bound else INT8,
                    roof_value=None if floats else bandwidth if memory_bound else rate,
                    share=None if floats else least / seconds,
                    note="the roof moved" if not floats and least > 1.05 * seconds else "",
                )  # fmt: skip
