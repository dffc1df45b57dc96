"""What is freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.engine import machine

CODE = """
import ctypes, sys
import psutil
from localllm.engine import machine

c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.malloc.argtypes = c.memset.argtypes = None
process = psutil.Process()
if sys.argv[1] == "options":
    machine.free_to_the_system()
before = process.memory_info().rss
for size in (8 << 20, 7 << 20):  # what is freed first makes glibc keep what is smaller
    blocks = []
    for _ in range(6):
        blocks.append(c.malloc(ctypes.c_size_t(size)))
        c.memset(ctypes.c_void_p(blocks[-1]), 1, ctypes.c_size_t(size))
        c.malloc(ctypes.c_size_t(100_000))  # which stays
    for block in blocks:
        c.free(ctypes.c_void_p(block))
if sys.argv[1] == "give":
    machine.give_memory_back()
print(process.memory_info().rss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="these are options of glibc")
def test_no_holes_between_what_stays() -> None:
    kept = {}
    for way in ("", "options", "give"):
        done = subprocess.run(
            [sys.executable, "-c", CODE, way], capture_output=True, text=True, check=True
        )
        kept[way] = int(done.stdout)
    assert kept["options"] < 4 << 20 and kept["give"] < 4 << 20 < 30 << 20 < kept[""], kept


#: What the kernel calls the features that each set of kernels rests on.
FEATURES = {
    "avx2": {"avx", "avx2", "fma", "f16c"},
    "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx512": {"avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"},
    "amx": {"avx512f", "avx512_vnni", "amx_tile", "amx_int8"},
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="cross.py checks ARM's")
def test_every_set_that_this_cpu_has_is_used() -> None:
    """A set that is not found would be left out of all tests of kernels, and nobody would know."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("no /proc/cpuinfo")
    flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    has = set(flags.split(":")[1].split())
    expected = [isa for isa, needed in FEATURES.items() if needed <= has]
    assert machine.facts().isas == ("scalar", *expected)
