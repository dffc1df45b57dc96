"""What this machine offers to the engine: instruction sets, threads, memory and measured roofs."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from localllm import native

#: Larger than the caches of any desktop; read in a few hundredths of a second.
ROOF_BYTES = 256 << 20

#: Of this size on, memory that is freed goes back at once.
LARGE_BYTES = 1 << 20
#: Options of glibc's `mallopt`: see its malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


@dataclass(frozen=True)
class MachineFacts:
    """The machine as this process may use it."""

    isa: str  # the best instruction set, which runs unless another one is forced
    isas: tuple[str, ...]  # all that this build has and this CPU runs, best last
    features: str  # what cpuid or hwcap said
    n_cpus: int  # allowed by affinity
    cpu_quota: float  # CPUs that the cgroup allows, 0 without a limit
    n_threads: int  # the default
    memory_bytes: int  # physical, or the cgroup's limit if that is less
    free_bytes: int
    source: str  # the commit that the engine was built from, "+dirty" if changed, or a version
    arithmetic_version: int  # logits may differ in a bit between versions, never inside one
    block_tokens: int  # tokens in a block of the KV cache


@dataclass(frozen=True)
class Roofs:
    """The most that any kernel can reach here."""

    n_threads: int
    n_bytes: int  # that the bandwidth was measured on
    read_gb_per_s: float
    int8_gop_per_s: float  # a multiply and an add are two operations


def facts() -> MachineFacts:
    """Asks the system; takes well under a millisecond."""
    lib = native.lib
    probe = native.ffi.new("llm_machine *")
    lib.llm_machine_probe(probe)
    return MachineFacts(
        isa=native.text(probe.isa),
        isas=tuple(native.text(lib.llm_isa_name(i)) for i in range(lib.llm_n_isas())),
        features=native.text(lib.llm_isa_features()),
        n_cpus=probe.n_cpus,
        cpu_quota=probe.cpu_quota,
        n_threads=probe.n_threads,
        memory_bytes=probe.memory_bytes,
        free_bytes=probe.free_bytes,
        source=native.text(lib.llm_source()),
        arithmetic_version=lib.LLM_ARITHMETIC_VERSION,
        block_tokens=lib.LLM_BLOCK_TOKENS,
    )


def free_to_the_system() -> None:
    """From now on what is freed goes back to the system if it is large, and small pieces of all
    threads lie together: models come and go without leaving holes between what stays."""
    set_option = _of_glibc("mallopt")
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, LARGE_BYTES)
        set_option(_M_ARENA_MAX, 2)


def give_memory_back() -> None:
    """Memory that was freed goes to the system, where the C library would keep it: what a closed
    model held lies between what others hold. Takes milliseconds."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def roof_bytes(n_bytes: int = ROOF_BYTES) -> int:
    """How much of n_bytes the bandwidth can be measured on: at most half of what is free, since a
    memory group kills whoever takes more than is there."""
    return max(1 << 20, min(n_bytes, facts().free_bytes // 2))


def measure_roofs(n_threads: int = 0, n_bytes: int = ROOF_BYTES) -> Roofs:
    """Measures the memory bandwidth, on `roof_bytes` of n_bytes, and the integer speed: about a
    second. n_threads 0: the default. Raises `OutOfMemoryError` if so much cannot be had."""
    lib = native.lib
    n_bytes = roof_bytes(n_bytes)
    threads = native.create(
        "llm_threads *", lib.llm_threads_create, lib.llm_threads_destroy, n_threads
    )
    try:
        bandwidth = native.ffi.new("double *")
        native.call(lib.llm_roof_bandwidth, threads, n_bytes, bandwidth)
        operations = native.ffi.new("double *")
        native.call(lib.llm_roof_int8, threads, native.ffi.NULL, operations)
        count = lib.llm_threads_count(threads)
        return Roofs(count, n_bytes, bandwidth[0], operations[0])
    finally:
        native.ffi.release(threads)
