"""Counts the instructions that each op and step executes, by callgrind: no timer, no noise.

The program is native/limits/executed.c. valgrind runs no AVX-512: see loop_code.py for the rest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from stages import ROOT

ISAS = ("scalar", "avx2")
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
_PART = re.compile(r"\.out\.(\d+)$")


def write_model(path: Path) -> None:
    """A one-layer model that runs every kind of kernel of a step."""
    sys.path.insert(0, str(ROOT))
    from benchmarks import synthetic

    shape = synthetic.Shape(1, 256, 256, 4, 2, 64, 64, True)
    synthetic.write(path, shape, "Q4_K_M")


def count(build: Path) -> dict[tuple[str, str, str], int]:
    """{(instruction set, case, measure): instructions}. Raises CalledProcessError."""
    found: dict[tuple[str, str, str], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.gguf")
        write_model(model)
        runs = {isa: _start(build, isa, model, Path(folder, isa)) for isa in ISAS}
        for isa, process in runs.items():
            output, _ = process.communicate()
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args, output)
            names = [line for line in output.splitlines() if not line.startswith("==")]
            totals = _totals(Path(folder, isa))
            for name, total in zip(names, totals, strict=True):
                found[isa, name, "executed"] = total
    return found


def _start(build: Path, isa: str, model: Path, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    return subprocess.Popen(
        [
            "valgrind", "--quiet", "--tool=callgrind", "--collect-atstart=no",
            "--toggle-collect=run_case", "--dump-after=run_case",
            f"--callgrind-out-file={folder}/callgrind.out",
            str(build / "executed"), isa, str(model),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_BIND_NOW": "1"},  # no symbol is looked up inside a case
    )  # fmt: skip


def _totals(folder: Path) -> list[int]:
    """The counts of the numbered dumps, in order; the last dump, of no case, has no number."""
    numbered = [(int(m[1]), p) for p in folder.iterdir() if (m := _PART.search(p.name))]
    totals = []
    for _, path in sorted(numbered):
        match = _TOTAL.search(path.read_text(encoding="utf-8", errors="replace"))
        totals.append(int(match[1]) if match else 0)
    return totals
