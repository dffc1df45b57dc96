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
VERSION = 1


def remembered(folder: Path, *, anew: bool = False) -> Roofs:
    """The roofs of this machine from the folder, or measured and written there. What was measured
    with other CPUs, threads or instruction sets does not count. Raises `OutOfMemoryError`; a folder
    that cannot be used costs only the next measurement."""
    path, machine = folder / NAME, _machine(facts())
    if not anew and (known := _read(path, machine)):
        return known
    # Other programs may take a part of a measurement away, never add to it.
    roofs = max((measure_roofs() for _ in range(2)), key=lambda each: each.read_gb_per_s)
    document = {"version": VERSION, "machine": machine, "roofs": asdict(roofs)}
    try:
        paths.ensure(folder)
        with replacing(path) as file:
            file.write(json.dumps(document).encode())
    except (OSError, FileError):
        pass
    return roofs


def _machine(machine: MachineFacts) -> list[str]:
    """What decides how fast this process can be."""
    return [machine.isa, machine.features, str(machine.n_cpus), str(machine.n_threads)]


def _read(path: Path, machine: list[str]) -> Roofs | None:
    try:
        document = json.loads(path.read_bytes())
        if (document["version"], document["machine"]) != (VERSION, machine):
            return None
        roofs = document["roofs"]
        found = Roofs(
            int(roofs["n_threads"]),
            int(roofs["n_bytes"]),
            float(roofs["read_gb_per_s"]),
            float(roofs["int8_gop_per_s"]),
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return found if found.read_gb_per_s > 0 and found.int8_gop_per_s > 0 else None
