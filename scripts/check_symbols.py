"""Checks the exported names of the kernel objects. Usage: check_symbols.py BUILD_FOLDER

A kernel object may export only names that end in its instruction set: a shared name compiled once
with AVX-512 could be picked by the linker for every machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_FOLDER = re.compile(r"llm_cpu_(\w+)\.dir")


def exported(object_file: Path, nm: str = "nm") -> list[str]:
    """The external names that an object file defines."""
    listed = subprocess.run(
        [nm, "--defined-only", "--extern-only", "--format=posix", str(object_file)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in listed.stdout.splitlines() if line]


def kernel_objects(build: Path) -> Iterator[tuple[str, Path]]:
    """(instruction set, object file) of a CMake build folder."""
    for path in sorted(build.rglob("*.o")):
        folder = _FOLDER.search(path.as_posix())
        if folder:
            yield folder[1], path


def violations(build: Path) -> list[str]:
    """One line for each name without its suffix; a build without kernels is one too."""
    problems = []
    objects = list(kernel_objects(build))
    if not objects:
        problems.append(f"{build}: no kernel objects here")
    for isa, path in objects:
        names = exported(path)
        problems += [
            f"{path.name} ({isa}): exports {name}" for name in names if not name.endswith(f"_{isa}")
        ]
    return problems


def main(build: Path) -> int:
    """Prints the violations; 1 if there are any."""
    problems = violations(build)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
