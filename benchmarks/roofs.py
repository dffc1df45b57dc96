"""The roofs of a machine: how fast it reads memory, and how fast it multiplies int8 and f32.

Reading is the best of several patterns (streams, prefetch distances) over huge pages where the
system has them; products are each instruction set's own, kept in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.report import Key, Row
from localllm import native
from localllm.engine import machine
from localllm.native import ffi, lib

READ_BYTES = 1 << 30
READ, INT8, F32 = "read GB/s", "int8 Gop/s", "f32 Gop/s"


class Threads:
    """A thread pool and the roofs of the machine under it."""

    def __init__(self, n_threads: int = 0) -> None:
        self.handle = native.create(
            "llm_threads *", lib.llm_threads_create, lib.llm_threads_destroy, n_threads
        )
        self.count: int = lib.llm_threads_count(self.handle)

    def read_gb_per_s(self, n_bytes: int = READ_BYTES) -> float:
        """Of n_bytes, or of what `machine.roof_bytes` leaves of them."""
        n_bytes = machine.roof_bytes(n_bytes)
        out = ffi.new("double *")
        native.call(lib.llm_roof_bandwidth, self.handle, n_bytes, out)
        return float(out[0])

    def int8_gop_per_s(self, isa: str | None = None) -> float:
        return self._gop_per_s(lib.llm_roof_int8, isa)

    def f32_gop_per_s(self, isa: str | None = None) -> float:
        return self._gop_per_s(lib.llm_roof_f32, isa)

    def _gop_per_s(self, roof: Any, isa: str | None) -> float:
        out = ffi.new("double *")
        native.call(roof, self.handle, ffi.new("char[]", isa.encode()) if isa else ffi.NULL, out)
        return float(out[0])


class Watch:
    """The best that one roof reaches in looks taken between the timed runs of a test."""

    def __init__(self, threads: Threads, roof: str) -> None:
        self._threads, self.roof, self.value = threads, roof, 0.0

    def look(self) -> None:
        seen = (
            self._threads.read_gb_per_s() if self.roof == READ else self._threads.int8_gop_per_s()
        )
        self.value = max(self.value, seen)


def keys() -> list[Key]:
    isas = machine.facts().isas
    return [("roof", of) for of in ("read of 1 GiB", *map(_dot, isas), *map(_fma, isas))]


def _dot(isa: str) -> str:
    return f"int8 dot, {isa}"


def _fma(isa: str) -> str:
    return f"f32 fma, {isa}"


def measure(threads: Threads, n_looks: int = 3) -> Iterator[Row]:
    """Yields a row per roof, the best of n_looks that take turns."""
    isas = machine.facts().isas
    best = dict.fromkeys((of for _, of in keys()), 0.0)
    for _ in range(n_looks):
        best["read of 1 GiB"] = max(best["read of 1 GiB"], threads.read_gb_per_s())
        for isa in isas:
            best[_dot(isa)] = max(best[_dot(isa)], threads.int8_gop_per_s(isa))
            best[_fma(isa)] = max(best[_fma(isa)], threads.f32_gop_per_s(isa))
    n_bytes = machine.roof_bytes(READ_BYTES)
    note = "" if n_bytes == READ_BYTES else f"of {n_bytes >> 20} MiB: memory is short"
    yield Row("roof", "read of 1 GiB", "GB/s", best.pop("read of 1 GiB"), note=note)
    yield from (Row("roof", of, "Gop/s", rate) for of, rate in best.items())
