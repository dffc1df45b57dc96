"""Checks which instructions the matmul objects use. Usage: check_vector_code.py BUILD_FOLDER

That a forced instruction set is the one that runs has two halves: the dispatch returns the table of
that name (tested natively), and the objects behind the table hold that instruction set's code and
no wider one. This is the second half, for x86-64 and aarch64.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from loop_code import disassembly

_OBJECT = re.compile(r"llm_cpu_(\w+)\.dir/.*(matmul_q\w+)\.c\.o(bj)?$")
_DOT = r"\b[su]dot\t"
_BY_LANE = r"\bsdot\t.*\.4b\[\d\]"
_EXPECTED = {  # patterns that must be there, and that must not
    "scalar": ([], [r"%ymm", r"%zmm", _DOT, r"mmla\t"]),
    "avx2": ([r"vpmaddubsw.*%ymm"], [r"%zmm", r"vpdp"]),
    "avxvnni": ([r"\{vex\} vpdpbusd.*%ymm"], [r"%zmm", r"ymm(1[6-9]|2\d|3[01])\b", r"vpmaddubsw"]),
    "avx512": ([r"vpdpbusd.*%zmm"], [r"tdpb"]),
    "amx": ([r"vpdpbusd.*%zmm", r"tdpbssd"], []),
    "asimd": ([r"\bsmlal2\t"], [_DOT, r"usdot", r"mmla\t"]),
    "neon": ([_BY_LANE], [r"usdot", r"mmla\t"]),
    "i8mm": ([_BY_LANE, r"\bsmmla\t"], []),
}
#: What only one source file needs: Q8_0 has weights of all of u8 that are not from a codebook.
_ALSO = {("i8mm", "matmul_q32"): [r"\busmmla\t", r"\busdot\t.*\.4b\[\d\]"]}


def violations(build: Path) -> list[str]:
    """One line for each object with the wrong code; a build without matmul objects is one too."""
    objects = [(m, p) for p in sorted(build.rglob("*")) if (m := _OBJECT.search(p.as_posix()))]
    if not objects:
        return [f"{build}: no matmul objects here"]
    problems = []
    for (isa, source), path in ((m.group(1, 2), p) for m, p in objects):
        code = "\n".join(disassembly(path))
        if "file format elf64" not in code:
            continue
        needed, banned = _EXPECTED[isa]
        needed = needed + _ALSO.get((isa, source), [])
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
