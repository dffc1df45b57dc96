"""Whether a model fits this machine, in words, and how fast it will answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.errors import LocalLLMError
from localllm.paths import Paths
from localllm.plain_text import size_text
from localllm.session import catalogue_plans, machine_facts, memory_plans, remembered_roofs
from localllm.store import quantization, speeds
from localllm.store.architecture import engine_of
from localllm.store.catalog import Catalog, Entry, Size
from localllm.store.index import Model
from localllm.store.quantization import Quantization
from localllm.store.recommend import (
    CONTEXT,
    SHARE_OF_FREE,
    Roof,
    Suggestion,
    recommend,
    suggest,
    suggest_entry,
)
from localllm.store.ref import Ref
from localllm.store.work import work_of

FITS, SHORT, FROM_DISK, TOO_LARGE, UNKNOWN = (
    "fits", "less context", "from disk", "too large", "not known",
)  # fmt: skip


@dataclass(frozen=True)
class Outlook:
    """What is to be expected of a model here. 0, None and empty: not known."""

    fit: str = UNKNOWN  # FITS, SHORT, FROM_DISK, TOO_LARGE or UNKNOWN
    why: str = ""  # a sentence with the figures
    tokens_per_s: float | None = None  # predicted, with half of the context filled
    basis: str = ""  # what that rests on
    n_ctx: int = 0  # tokens that a load would take
    n_trained: int = 0
    file_bytes: int = 0  # of a file that is not here, predicted
    quantization: str = ""  # that a pull takes
    plans: tuple[tuple[int, str, int, bool], ...] = ()  # (context, KV type, bytes, whether it fits)


def read_speed(places: Paths) -> float:
    """GB/s that memory is read at here. On the first calls of a machine it is measured, which takes
    a second or two. Raises `OutOfMemoryError`."""
    return remembered_roofs(places.cache).read_gb_per_s


class Judge:
    """Knows the machine as it is at this moment."""

    def __init__(
        self,
        places: Paths,
        models: list[Model],
        known: Catalog,
        read_gb_per_s: float,
        held_bytes: int = 0,
    ) -> None:
        """held_bytes: what the open model holds, which goes before another one comes."""
        machine = machine_facts()
        measured = speeds.here(places.cache, models, machine.isa, machine.n_threads)
        self._roof = Roof(read_gb_per_s, tuple(measured))
        free = machine.free_bytes
        self._held = held_bytes
        self._free = min(machine.memory_bytes, free + held_bytes) if free else 0
        self._room = int(self._free * SHARE_OF_FREE)
        self._known = known
        self._attentions = {size.ref: size.attention for size in known.sizes}

    def of_file(self, path: Path, ref: Ref | str, architecture: str) -> Outlook:
        """Of a model that is here; from its header."""
        try:
            facts = memory_plans(path, freed_bytes=self._held)
            step_bytes = work_of(path).step_bytes
        except (LocalLLMError, OSError) as e:
            message = e.message if isinstance(e, LocalLLMError) else str(e)
            return Outlook(why=f"It cannot be judged: {message}.")
        engine = engine_of(architecture or str(facts["architecture"])) or "llama.cpp"
        usual = _usual_plan(facts)
        speed, basis = self._roof.speed(
            _as_ref(ref), engine, step_bytes, usual["kv_bytes"] / 2, usual["n_ctx"] // 2
        )
        return _outlook(facts, speed, basis)

    def of_entry(self, entry: Entry) -> Outlook:
        """Of a model of the package index that is not here."""
        attention = self._attentions.get(entry.ref)
        found = suggest_entry(entry, attention, self._roof)
        facts = catalogue_plans(entry, attention, freed_bytes=self._held)
        return _outlook(facts, found.tokens_per_s, found.basis)

    def of_size(self, size: Size) -> Outlook:
        """Of a size of the catalogue, in the quantization that a pull takes by default."""
        quant = size.published or Quantization(quantization.DEFAULT)
        found = suggest(size, quant, self._roof)
        needed = f"It takes about {size_text(found.memory_bytes)} with {found.n_ctx} tokens"
        fits = not self._free or found.memory_bytes <= self._room
        return Outlook(
            FITS if fits else TOO_LARGE,
            f"{needed}; {_free_text(self._free)}.",
            found.tokens_per_s,
            found.basis,
            found.n_ctx if fits else 0,
            size.n_ctx,
            found.weight_bytes,
            found.quantization,
        )

    def recommended(self, has_disk: Callable[[Suggestion], bool]) -> list[Suggestion]:
        """As `localllm recommend` does."""

        def fits(each: Suggestion) -> bool:
            return each.memory_bytes <= self._room and has_disk(each)

        return recommend(self._known, self._roof.read_gb_per_s, fits, known=list(self._roof.known))


def _as_ref(ref: Ref | str) -> Ref:
    return ref if isinstance(ref, Ref) else Ref(ref)


def _usual_plan(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The largest plan in f16 of at most CONTEXT tokens, else the smallest."""
    plans = [plan for plan in facts["plans"] if plan["kv_type"] == "f16"]
    within = [plan for plan in plans if plan["n_ctx"] <= CONTEXT]
    found: Mapping[str, Any] = max(within, key=lambda p: p["n_ctx"]) if within else plans[0]
    return found


def _outlook(facts: Mapping[str, Any], speed: float, basis: str) -> Outlook:
    chosen, free, trained = facts["chosen"], facts["free_bytes"], facts["trained"]
    fit, why = _words(chosen, facts, free)
    plans = tuple(
        (plan["n_ctx"], plan["kv_type"], plan["total_bytes"], plan["fits"])
        for plan in facts["plans"]
    )
    n_ctx = chosen["n_ctx"] if chosen else 0
    return Outlook(fit, why, speed or None, basis, n_ctx, trained, plans=plans)


def _words(chosen: Any, facts: Mapping[str, Any], free: int) -> tuple[str, str]:
    if chosen is None:
        return TOO_LARGE, f"It will not run at this moment: {facts['refused']}"
    about = "about " if facts["estimate"] else ""
    needed = f"{about}{size_text(chosen['total_bytes'])} with {chosen['n_ctx']} tokens"
    if chosen["mapped_bytes"]:
        return FROM_DISK, f"Its weights would be read from the disk, slowly: {_free_text(free)}."
    trained = facts["trained"] or CONTEXT
    fit = SHORT if chosen["n_ctx"] < min(trained, CONTEXT) else FITS
    return fit, f"It takes {needed}; {_free_text(free)}."


def _free_text(free: int) -> str:
    return f"{size_text(free)} of memory are free" if free else "free memory is not known"
