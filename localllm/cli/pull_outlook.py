"""Whether a model will run here, told before the first byte of it is fetched: which engine knows
its architecture, and whether weights, the least cache and the buffers have room in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.cli import output
from localllm.errors import LocalLLMError
from localllm.store.architecture import NATIVE
from localllm.store.catalog import Entry
from localllm.store.index import Store
from localllm.store.offer import Offer
from localllm.store.remote_header import headers
from localllm.store.transfer.settings import MIB

#: A header that is longer is not fetched twice.
_MOST_HEADER = 32 * MIB


@dataclass(frozen=True)
class Outlook:
    """A sentence on memory, and notes on the engine."""

    memory: str
    notes: tuple[str, ...] = ()


def of_offer(offer: Offer) -> Outlook:
    """From the header, of the file here or at its source; where it cannot be had, from what the
    source says."""
    from localllm.session import memory_plans  # only now: with it comes the native module

    try:
        with _header(offer) as path:
            facts = memory_plans(path)
    except (LocalLLMError, OSError):
        memory = _rough(offer.size) if offer.size is not None else "its size is not known"
        return Outlook(memory, _engine_notes(offer.architecture))
    notes = _engine_notes(facts["architecture"]) if facts["estimate"] else ()
    return Outlook(_memory(facts), notes)


def of_entry(entry: Entry) -> Outlook:
    """From the catalogue: wheels are read as a whole."""
    from localllm.session import catalogue_plans

    facts = catalogue_plans(entry, None)
    return Outlook(_memory(facts), _engine_notes(entry.architecture))


@contextlib.contextmanager
def _header(offer: Offer) -> Iterator[Path]:
    here = Store(paths.current().models).find(offer.ref)
    if here is not None and not offer.in_place and here.problem is None:
        yield here.path
        return
    with (
        output.waiting(f"{offer.ref}: reading its header"),
        headers(offer, lambda n_bytes: None, most_bytes=_MOST_HEADER) as path,
    ):
        yield path


def _engine_notes(architecture: str) -> tuple[str, ...]:
    if not architecture or architecture in NATIVE:
        return ()
    from localllm.session import knows_architecture

    shown = ascii(architecture[:40])[1:-1]
    known = knows_architecture(architecture)
    if known is None:
        return (
            f"its architecture, {shown}, takes llama.cpp, which is not installed: "
            "pip install 'localllm[compat]'",
        )
    if not known:
        return (f"no engine here knows its architecture, {shown}: it will not run",)
    return (f"its architecture, {shown}, runs with llama.cpp",)


def _memory(facts: dict[str, Any]) -> str:
    free, chosen = facts["free_bytes"], facts["chosen"]
    if free == 0:
        return "how much memory is free is not known"
    if chosen is None:
        return f"it will not run at this moment: {facts['refused']}"
    size = output.size_text(free)
    needed = output.size_text(chosen["total_bytes"])
    if chosen["mapped_bytes"]:
        return f"{size} of memory are free: it would run from the disk, slowly"
    about = "about " if facts["estimate"] else ""
    return (
        f"{size} of memory are free, enough to run it ({about}{needed} with a context of "
        f"{chosen['n_ctx']} tokens)"
    )


def _rough(size: int) -> str:
    """By the size of the weights alone, which is a limit from below."""
    from localllm.session import machine_facts

    machine = machine_facts()
    memory, free = machine.memory_bytes, machine.free_bytes
    if 0 < memory < size:
        return (
            f"this machine has {output.size_text(memory)} of memory, less than the model: it "
            "will not run here"
        )
    if free == 0:
        return "how much memory is free is not known"
    if size > free:
        return f"only {output.size_text(free)} of memory are free at this moment"
    return (
        f"{output.size_text(free)} of memory are free; what it takes beside its weights shows later"
    )
