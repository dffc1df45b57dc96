"""Checks which vector registers the matmul objects use. Usage: check_vector_code.py BUILD_FOLDER

That a forced instruction set is the one that runs has two halves: the dispatch returns the table of
that name (tested natively), and the objects behind the table hold that instruction set's code and
no wider one. This is the second half, for x86-64 builds; others pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_OBJECT = re.compile(r"llm_cpu_(scalar|avx2|avxvnni|avx512|amx)\.dir/.*matmul_q\w+\.c\.o(bj)?$")
_EXPECTED = {  # patterns that must be there, and that must not
    "scalar": ([], [r"%ymm", r"%zmm"]),
    "avx2": ([r"vpmaddubsw.*%ymm"], [r"%zmm", r"vpdp"]),
    "avxvnni": ([r"\{vex\} vpdpbusd.*%ymm"], [r"%zmm", r"ymm(1[6-9]|2\d|3[01])\b", r"vpmaddubsw"]),
    "avx512": ([r"vpdpbusd.*%zmm"], [r"tdpb"]),
    "amx": ([r"vpdpbusd.*%zmm", r"tdpbssd"], []),
}


def violations(build: Path) -> list[str]:
    """One line for each object with the wrong code; a build without matmul objects is one too."""
    objects = [(m[1], p) for p in sorted(build.rglob("*")) if (m := _OBJECT.search(p.as_posix()))]
    if not objects:
        return [f"{build}: no matmul objects here"]
    problems = []
    for isa, path in objects:
        code = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", str(path)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        if "elf64-x86-64" not in code:
            continue
        needed, banned = _EXPECTED[isa]
        problems += [f"{path.name} ({isa}): no {p}" for p in needed if not re.search(p, code)]
        problems += [f"{path.name} ({isa}): has {p}" for p in banned if re.search(p, code)]
    return problems


def main(build: Path) -> int:
    """Prints the violations; 1 if there are any."""
    problems = violations(build)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
