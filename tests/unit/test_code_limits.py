"""The guard of the kernels' code: a spill, an extra pass and more instructions are found."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

PLAIN = """#include <immintrin.h>
void add_avx512(float *y, const float *x, long n) {
    __m512 one = _mm512_set1_ps(1.0f);
    for (long i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i, _mm512_fmadd_ps(one, _mm512_loadu_ps(x + i), one));
    SECOND
}
"""
SPILLS = "for (long i = 0; i < n; i += 16) { volatile __m512 s = one; one = s; }"
PASSES = "for (long i = 0; i < n; i += 16) _mm512_storeu_ps(y + i, one);"


@pytest.fixture
def code_limits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import code_limits

    return code_limits


def counts_of(tmp_path: Path, body: str) -> dict[tuple[str, str, str], int]:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler or not shutil.which("objdump") or platform.machine() != "x86_64":
        pytest.skip("needs a compiler for x86-64 and objdump")
    folder = tmp_path / "CMakeFiles" / "llm_cpu_avx512.dir" / "src"
    folder.mkdir(parents=True, exist_ok=True)
    source = tmp_path / "add.c"
    source.write_text(PLAIN.replace("SECOND", body), encoding="utf-8")
    command = [compiler, "-O2", "-mavx512f", "-c", str(source), "-o", str(folder / "add.c.o")]
    subprocess.run(command, check=True)
    found: dict[tuple[str, str, str], int] = sys.modules["loop_code"].count(tmp_path, ("scalar",))
    return found


def test_a_planted_spill_and_a_second_pass_are_found(
    tmp_path: Path, code_limits: ModuleType
) -> None:
    limits = counts_of(tmp_path, "")
    isa, where = "avx512", "add.c add_avx512"
    assert limits[isa, where, "spills"] == 0 < limits[isa, where, "loop code"]
    assert code_limits.violations(counts_of(tmp_path, ""), limits) == []
    spilled = code_limits.violations(counts_of(tmp_path, SPILLS), limits)
    assert any("spills, the limit is 0 (+" in line for line in spilled)
    (longer,) = code_limits.violations(counts_of(tmp_path, PASSES), limits)
    assert longer.startswith("avx512, add.c add_avx512: ") and "loop code, the limit is" in longer


def test_slack_missing_and_stale_limits(tmp_path: Path, code_limits: ModuleType) -> None:
    table = tmp_path / "limits" / "x.csv"
    limits = {("avx2", "op", "executed"): 1000, ("avx512", "f", "spills"): 4}
    code_limits.write(table, limits)
    assert code_limits.read(table) == limits

    def problems(executed: int, spills: int) -> list[str]:
        counts = {("avx2", "op", "executed"): executed, ("avx512", "f", "spills"): spills}
        found: list[str] = code_limits.violations(counts, limits)
        return found

    assert problems(1030, 4) == []
    assert problems(1031, 5) == [
        "avx2, op: 1031 executed, the limit is 1000 (+3.1%)",
        "avx512, f: 5 spills, the limit is 4 (+25.0%)",
    ]
    assert code_limits.violations({("avx2", "new", "executed"): 5}, {}) == [
        "avx2, new: 5 executed, no limit is stored"
    ]
    assert code_limits.violations({}, {("avx2", "old", "executed"): 5}) == [
        "avx2, old: executed is in the table, not in the build"
    ]


def test_loops_of_arm_code(code_limits: ModuleType) -> None:
    lines = """
0000000000000000 <f_neon.constprop.0>:
   0:\tstr\tq8, [sp, #16]
   4:\tldr\tq0, [x1], #16
   8:\tldr\tq9, [sp, #32]
   c:\tsdot\tv1.4s, v0.16b, v9.4b[0]
  10:\tsubs\tx2, x2, #0x1
  14:\tb.ne\t4 <f_neon.constprop.0+0x4>  // b.any
  18:\tret
""".splitlines()
    loop_code = sys.modules["loop_code"]
    ((name, code),) = loop_code.functions(lines)
    assert name == "f_neon.constprop.0"
    assert loop_code.in_loops(code) == (5, 1)
