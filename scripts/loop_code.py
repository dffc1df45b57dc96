"""Counts the instructions of kernels that stand in loops, and their spills, in object files.

For instruction sets that callgrind cannot run. A loop is the code between a backward branch and its
target; nested loops count once. A spill is an instruction with a vector register and a stack slot.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")
_BRANCH = re.compile(r"^(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?([0-9a-f]+) <")
_CLONE = re.compile(r"\.(constprop|isra|part|cold|lto_priv)(\.\d+)?")
_SPILLS = (
    re.compile(r"(?=.*%[xyz]mm\d).*\(%r[sb]p"),
    re.compile(r"^(?:ldr|str|ldp|stp|ldur|stur)\s+[qvd]\d+.*\[(?:sp|x29)"),
)
_OBJECT = re.compile(r"llm_cpu_(\w+)\.dir/.*?(\w+\.c)\.o$")
_ARM = b"\xb7\x00"  # e_machine


def kernel_objects(build: Path) -> Iterator[tuple[str, str, Path]]:
    """(instruction set, source file, object) of a CMake build folder."""
    for path in sorted(build.rglob("*.o")):
        match = _OBJECT.search(path.as_posix())
        if match:
            yield match[1], match[2], path


def disassembly(path: Path) -> list[str]:
    """Lines of objdump. Raises FileNotFoundError, CalledProcessError."""
    with path.open("rb") as f:
        machine = f.read(20)[18:20]
    tool = "aarch64-linux-gnu-objdump" if machine == _ARM else "objdump"
    done = subprocess.run(
        [tool, "-d", "--no-show-raw-insn", str(path)], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def functions(lines: Iterable[str]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """(name, [(address, instruction)]) of each function of a disassembly."""
    name, code = "", list[tuple[int, str]]()
    for line in lines:
        if start := _FUNCTION.match(line):
            if code:
                yield name, code
            name, code = start[1], []
        elif instruction := _INSTRUCTION.match(line):
            code.append((int(instruction[1], 16), instruction[2].strip()))
    if code:
        yield name, code


def in_loops(code: list[tuple[int, str]]) -> tuple[int, int]:
    """(instructions, spills) of a function that lie in some loop."""
    spans = []
    first = code[0][0]
    for address, text in code:
        branch = _BRANCH.match(text)
        if branch and first <= int(branch[1], 16) <= address:
            spans.append((int(branch[1], 16), address))
    n_instructions = n_spills = 0
    for address, text in code:
        if any(begin <= address <= end for begin, end in spans):
            n_instructions += 1
            n_spills += any(spill.match(text) for spill in _SPILLS)
    return n_instructions, n_spills


def count(build: Path, left_out: Iterable[str]) -> dict[tuple[str, str, str], int]:
    """{(instruction set, source and function, measure): count}, but for the instruction sets left
    out. The parts that a compiler makes of one function are summed up."""
    found: Counter[tuple[str, str, str]] = Counter()
    for isa, source, path in kernel_objects(build):
        if isa in left_out:
            continue
        for name, code in functions(disassembly(path)):
            where = f"{source} {_CLONE.sub('', name)}"
            n_instructions, n_spills = in_loops(code)
            if n_instructions:
                found[isa, where, "loop code"] += n_instructions
                found[isa, where, "spills"] += n_spills
    return dict(found)
