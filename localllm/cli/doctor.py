"""`localllm doctor`: what this machine and this installation can do, and what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from localllm import __version__, paths
from localllm.cli import output
from localllm.errors import LocalLLMError
from localllm.store import catalog, copies
from localllm.store.durable import existing, free_disk
from localllm.store.index import Store
from localllm.store.lockfile import Lockfile

T = TypeVar("T")

_LEAST_DISK = 1 << 30  # bytes: less does not hold the smaller models


@click.command("doctor")
@click.option("--no-roofs", is_flag=True, help="Do not measure: answers at once.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(no_roofs: bool, as_json: bool) -> int:
    """Check this machine and this installation.

    Shows the instruction sets, the threads and why so many, memory, disk, where files are, and the
    measured roofs: how fast memory can be read and how fast the CPU multiplies 8-bit numbers. No
    kernel can be faster than these. Ends with exit code 1 if something is wrong.
    """
    problems: list[str] = []
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **_engine(problems, measure=not no_roofs),
        "files": _files(problems),
        "pip": _has_pip(problems),
        "problems": problems,
    }
    output.emit(json.dumps(facts) + "\n" if as_json else _text(facts))
    return 1 if problems else 0


def _engine(problems: list[str], *, measure: bool) -> dict[str, Any]:
    try:
        from localllm.session import machine_facts, machine_roofs

        machine = machine_facts()
        roofs = machine_roofs() if measure else None
    except ImportError as e:
        problems.append(f"the engine cannot be loaded: {e}. Reinstall localllm.")
        return {"engine": None}
    except LocalLLMError as e:
        problems.append(f"the machine cannot be measured: {e.message}. {e.hint or ''}".rstrip())
        return {"engine": None}
    if machine.free_bytes < 1 << 30:
        problems.append(f"only {output.size_text(machine.free_bytes)} of memory are free")
    return {
        "engine": {
            "source": machine.source,
            "arithmetic_version": machine.arithmetic_version,
            "kv_block_tokens": machine.block_tokens,
            "isa": machine.isa,
            "isas": list(machine.isas),
            "features": machine.features,
            "n_threads": machine.n_threads,
            "threads_reason": _why(machine.n_threads, machine.n_cpus, machine.cpu_quota),
            "n_cpus": machine.n_cpus,
            "cpu_quota": machine.cpu_quota or None,
            "memory_bytes": machine.memory_bytes,
            "free_bytes": machine.free_bytes,
            "roofs": {
                "n_threads": roofs.n_threads,
                "n_bytes": roofs.n_bytes,
                "read_gb_per_s": round(roofs.read_gb_per_s, 2),
                "int8_gop_per_s": round(roofs.int8_gop_per_s, 1),
            }
            if roofs
            else None,
        }
    }


def _why(n_threads: int, n_cpus: int, quota: float) -> str:
    allowed = f"this process may use {n_cpus} of {os.cpu_count() or n_cpus} CPUs"
    if not quota:
        return f"{allowed}, no cgroup limit"
    limit = f"its cgroup allows {quota:g}"
    rounded = f", rounded {'up' if n_threads > quota else 'down'}" if quota % 1 else ""
    return f"{allowed}, {limit}{rounded}"


def _files(problems: list[str]) -> dict[str, Any]:
    places = paths.current()
    # None where a part of the path is a file, or may not be read.
    models = _sound(Store(places.models).list, problems) or []
    problems += [f"{model.ref}: {model.problem}" for model in models if model.problem]
    known = _sound(lambda: [str(entry.ref) for entry in catalog.load()], problems) or []
    pins = _sound(Lockfile().all, problems) or {}
    free = free_disk(places.models)
    if free is not None and free < _LEAST_DISK:
        problems.append(f"only {output.size_text(free)} of disk are free for {places.models}")
    if not _writable(places.models):
        problems.append(f"{places.models} cannot be written to; set {paths.HOME_VARIABLE}")
    return {
        "models": str(places.models),
        "downloads": str(places.downloads),
        "config": str(places.config),
        "n_models": len(models),
        "model_bytes": copies.disk_bytes(models),
        "disk_free_bytes": free,
        "catalogue": known,
        "n_pinned": len(pins),
    }


def _sound(read: Callable[[], T], problems: list[str]) -> T | None:
    """What `read` gives. An error is one more problem, with what to do about it."""
    try:
        return read()
    except LocalLLMError as e:
        problems.append(f"{e.message}. {e.hint or ''}".rstrip())
        return None


def _writable(folder: Path) -> bool:
    nearest = existing(folder)
    return not nearest.is_dir() or os.access(nearest, os.W_OK)  # a file: the list failed


def _has_pip(problems: list[str]) -> bool:
    found = importlib.util.find_spec("pip") is not None or shutil.which("pip3") is not None
    if not found:
        problems.append(f"no pip, which pull needs: {sys.executable} -m ensurepip --upgrade")
    return found


def _text(facts: dict[str, Any]) -> str:
    engine, files = facts["engine"], facts["files"]
    rows = [("localllm", facts["version"]), ("Python", f"{facts['python']} on {facts['system']}")]
    if engine:
        others = ", ".join(isa for isa in engine["isas"] if isa != engine["isa"])
        rows += [
            ("CPU", f"{engine['isa']}" + (f" (also: {others})" if others else "")),
            ("features", engine["features"]),
            ("threads", f"{engine['n_threads']}: {engine['threads_reason']}"),
            (
                "memory",
                f"{output.size_text(engine['free_bytes'])} free of "
                f"{output.size_text(engine['memory_bytes'])}",
            ),
            (
                "engine",
                f"built from {engine['source']}, arithmetic {engine['arithmetic_version']}, "
                f"KV blocks of {engine['kv_block_tokens']} tokens",
            ),
        ]
        if roofs := engine["roofs"]:
            rows += [
                (
                    "roofs",
                    f"{roofs['read_gb_per_s']:.1f} GB/s read, {roofs['int8_gop_per_s']:.0f} Gop/s "
                    f"int8 ({roofs['n_threads']} threads, {engine['isa']})",
                )
            ]
    free = files["disk_free_bytes"]
    rows += [
        ("models", f"{files['n_models']}, {output.size_text(files['model_bytes'])}"),
        ("disk", f"{output.size_text(free)} free" if free is not None else "cannot be asked"),
        ("folders", files["models"]),
        ("", files["downloads"]),
        ("", files["config"]),
        ("catalogue", ", ".join(files["catalogue"]) or "none"),
        ("pip", "found" if facts["pip"] else "missing"),
    ]
    lines = [f"{name:10} {output.escape_line(text)}" for name, text in rows]
    problems = [f"problem: {output.escape_line(each)}" for each in facts["problems"]]
    return "\n".join([*lines, "", *(problems or ["No problems found."])]) + "\n"
