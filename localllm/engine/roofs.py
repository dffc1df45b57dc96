"""The measured roofs, remembered: a prediction needs them, and measuring takes a second."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from localllm import paths
from localllm.engine.machine import MachineFacts, Roofs, facts, measure_roofs
from localllm.errors import FileError
from localllm.store.durable import replacing

NAME = "roofs.json"
VERSION = 2
#: A call costs a second as long as fewer were taken.
MOST_LOOKS = 5


def remembered(folder: Path, *, anew: bool = False) -> Roofs:
    """The roofs of this machine: the best of the looks that were taken so far, which the folder
    keeps. Other programs may take a part of a measurement away, never add to it: so the first call,
    and one that asks for it `anew`, looks twice, and each later one once until MOST_LOOKS were
    taken. What was measured with other CPUs, threads or instruction sets does not count. Raises
    `OutOfMemoryError`; a folder that cannot be used costs only the next measurement."""
    path, machine = folder / NAME, _machine(facts())
    best, n_looks = (None, 0) if anew else _read(path, machine)
    if best is not None and n_looks >= MOST_LOOKS:
        return best
    looks = [measure_roofs() for _ in range(2 if best is None else 1)]
    n_looks += len(looks)
    best = max([*looks, *([best] if best else [])], key=lambda each: each.read_gb_per_s)
    document = {"version": VERSION, "machine": machine, "roofs": asdict(best), "looks": n_looks}
    try:
        paths.ensure(folder)
        with replacing(path) as file:
            file.write(json.dumps(document).encode())
    except (OSError, FileError):
        pass
    return best


def _machine(machine: MachineFacts) -> list[str]:
    """What decides how fast this process can be."""
    return [machine.isa, machine.features, str(machine.n_cpus), str(machine.n_threads)]


def _read(path: Path, machine: list[str]) -> tuple[Roofs | None, int]:
    """What was kept, and how many looks it is the best of."""
    try:
        document = json.loads(path.read_bytes())
        if (document["version"], document["machine"]) != (VERSION, machine):
            return None, 0
        roofs, n_looks = document["roofs"], int(document["looks"])
        found = Roofs(
            int(roofs["n_threads"]),
            int(roofs["n_bytes"]),
            float(roofs["read_gb_per_s"]),
            float(roofs["int8_gop_per_s"]),
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None, 0
    if found.read_gb_per_s > 0 and found.int8_gop_per_s > 0:
        return found, n_looks
    return None, 0
