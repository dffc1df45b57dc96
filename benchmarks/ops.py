"""The op table: each weight type times 1 .. 512 activation columns, against the roofs and the
rival's product of the same matrix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks import synthetic
from benchmarks.pairs import SETTLE_SECONDS, RivalChoice, paired
from benchmarks.report import Key, Row
from benchmarks.rival_ops import RivalOps
from benchmarks.roofs import F32, INT8, READ, Threads
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
#: How far the rival's product may be from ours, in relative root mean square: LLAMA_QUANTIZED and
#: ENGINE_AND_LLAMA of tests/reference/tolerances.py. A wrong layout is off by 1.
QUANTIZED_ERROR, FLOAT_ERROR = 4e-2, 5e-3
NO_RIVAL = RivalChoice(wanted=False)


class Weight:
    """A random matrix [n_rows, n_cols] of a type, laid out as a model would hold it."""

    def __init__(self, type_name: str, n_rows: int, n_cols: int) -> None:
        raw = synthetic.matrix(type_name, n_rows, n_cols)
        self.made_of = type_name, n_rows, n_cols
        self.n_rows, self.n_cols, self.n_bytes = n_rows, n_cols, raw.size
        self.handle = native.create(
            "llm_op_weight *", lib.llm_op_weight_create, lib.llm_op_weight_free,
            gguf.GGMLQuantizationType[type_name].value,
            native.array_in(raw, np.uint8, name="src"), raw.size, n_rows, n_cols, 0,
        )  # fmt: skip

    def product(
        self, threads: Threads, n: int, n_reps: int, isa: str | None = None
    ) -> tuple[float, npt.NDArray[np.float32]]:
        """Seconds of the shortest of n_reps products with n columns, and what it gives,
        [n, n_rows]."""
        x = synthetic.activations(n, self.n_cols)
        y = np.empty((n, self.n_rows), np.float32)
        out: Any = ffi.new("double *")
        native.call(
            lib.llm_op_matmul, threads.handle, ffi.new("char[]", isa.encode()) if isa else ffi.NULL,
            self.handle, native.array_in(x, np.float32, name="x"), n,
            native.array_out(y, np.float32, name="y"), n_reps, out,
        )  # fmt: skip
        return float(out[0]), y


def _disagreement(rival: RivalOps, weight: Weight, y: npt.NDArray[np.float32]) -> str:
    """Why the rival's product is no measure for ours, y [n, n_rows]: it is off by more than
    rounding, or there is none."""
    theirs = rival.ask("result", weight.made_of, len(y))
    if theirs is None:
        return rival.note
    error = float(np.linalg.norm(y - theirs) / np.linalg.norm(y))
    most = FLOAT_ERROR if weight.made_of[0] in FLOAT_TYPES else QUANTIZED_ERROR
    return "" if error <= most else f"the rival's product is off by {error:.2g}"


@dataclass
class InTurn:
    """Seconds of products with n columns, A B A B; the rival's are missing where it has none."""

    n: int
    ours: list[float] = field(default_factory=list)
    rivals: list[float] = field(default_factory=list)
    variant: str = ""
    note: str = ""


def _in_turn(
    weight: Weight, threads: Threads, rival: RivalOps, n: int, n_pairs: int, isa: str | None
) -> InTurn:
    """The pairs of a row. A product of each before them is not timed, but compared."""
    turns, n_reps = InTurn(n), 3 if n >= 64 else 7
    _, y = weight.product(threads, n, 1, isa)
    turns.note = _disagreement(rival, weight, y)
    for _ in range(n_pairs):
        time.sleep(SETTLE_SECONDS)
        # A pool that met a busy CPU leaves it out of 0.8 s of jobs, all that is left of a row.
        turns.ours.append(weight.product(Threads(threads.count), n, n_reps, isa)[0])
        if turns.note:
            continue
        time.sleep(SETTLE_SECONDS)
        timed = rival.ask("seconds", weight.made_of, n, n_reps)
        if timed is None:
            turns.rivals, turns.variant, turns.note = [], "", rival.note
        else:
            turns.rivals.append(timed[0])
            turns.variant = timed[1]
    return turns


def _test(n: int) -> str:
    return f"matmul {n} column{'s' * (n > 1)}"


def keys(type_name: str, columns: Sequence[int]) -> list[Key]:
    return [(_test(n), type_name) for n in columns]


def measure(
    threads: Threads,
    types: Sequence[str] = TYPES,
    columns: Sequence[int] = COLUMNS,
    isa: str | None = None,
    n_pairs: int = 3,
    choice: RivalChoice = NO_RIVAL,
    on_features: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Yields a row per type and column count; roofs are taken beside each type, and each type has a
    rival process of its own: one that dies takes no other type's figures with it.
    """
    for type_name in types:
        rival = RivalOps(choice, threads.count, on_features)
        try:
            for shape, several in ((LARGE, False), (SMALL, True)):
                if counts := [n for n in columns if (n >= 16) == several]:
                    weight = Weight(type_name, *shape)
                    yield from _rows(weight, threads, rival, counts, n_pairs, isa)
        finally:
            rival.close()


def _rows(
    weight: Weight,
    threads: Threads,
    rival: RivalOps,
    counts: Sequence[int],
    n_pairs: int,
    isa: str | None,
) -> Iterator[Row]:
    n_bytes = max(weight.n_bytes, 1 << 20)
    is_float = weight.made_of[0] in FLOAT_TYPES
    computed = threads.f32_gop_per_s if is_float else threads.int8_gop_per_s
    before = threads.read_gb_per_s(n_bytes), computed(isa)
    timed = [_in_turn(weight, threads, rival, n, n_pairs, isa) for n in counts]
    # The machine is shared: the better of two looks is nearer to what it can do.
    bandwidth = max(before[0], threads.read_gb_per_s(n_bytes))
    rate = max(before[1], computed(isa))
    yield from (_row(weight, turns, bandwidth, rate) for turns in timed)


def _row(weight: Weight, turns: InTurn, bandwidth: float, rate: float) -> Row:
    """Both engines' shortest. The share is that of whichever roof binds more: what the product
    would take at least, reading its weights once at full bandwidth and computing at the full rate
    of int8, or of f32 for floats, over what it took. The ratio is the median of the pairs."""
    type_name, n, seconds = weight.made_of[0], turns.n, min(turns.ours)
    ops = 2.0 * weight.n_rows * weight.n_cols * n
    reading, computing = weight.n_bytes / 1e9 / bandwidth, ops / 1e9 / rate
    memory_bound = reading >= computing
    least = reading if memory_bound else computing
    work = (weight.n_bytes if memory_bound else ops) / 1e9
    moved = "the roof moved" if least > 1.05 * seconds else ""
    return Row(
        _test(n), type_name,
        "GB/s" if memory_bound else "Gop/s",
        work / seconds,
        rival=work / min(turns.rivals) if turns.rivals else None,
        roof=READ if memory_bound else F32 if type_name in FLOAT_TYPES else INT8,
        roof_value=bandwidth if memory_bound else rate,
        share=least / seconds,
        rival_variant=turns.variant,
        note="; ".join(filter(None, (moved, turns.note))),
        **paired(turns.ours, turns.rivals),  # type: ignore[arg-type]
    )  # fmt: skip
