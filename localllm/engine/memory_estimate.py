"""What a model takes of memory where our own engine cannot say it: an estimate from the figures of
a header or of the catalogue, in the form of `memory_plan.survey`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.engine.memory_plan import (
    CONTEXTS,
    KV_SHARE_OF_FREE_MEMORY,
    MAX_BATCH_TOKENS,
    MIN_CONTEXT,
    MemoryPlan,
    Room,
    document,
)
from localllm.store.catalog import Attention, Entry
from localllm.store.inspect import GgufFile
from localllm.store.recommend import kv_bytes

#: Bytes of an element of the cache: q8_0 has 34 for 32.
KV_BYTES = {"f16": 2.0, "q8_0": 34 / 32}
#: Buffers of the engine beside those of the logits, as a share of the weights.
_SCRATCH_SHARE = 0.05
_SCRATCH_LEAST = 32 << 20
#: Rows of text of a vocabulary that nobody told.
_USUAL_VOCABULARY = 150_000


@dataclass(frozen=True)
class Figures:
    """What an estimate rests on."""

    architecture: str
    n_params: int
    n_ctx: int  # trained, 0: not known
    weight_bytes: int
    kv_elements: Callable[[int], float]  # keys and values together of so many tokens
    n_vocab: int = _USUAL_VOCABULARY

    def plan(self, n_ctx: int, kv_type: str) -> MemoryPlan:
        logits = 4 * min(MAX_BATCH_TOKENS, n_ctx) * self.n_vocab
        return MemoryPlan(
            n_ctx=n_ctx,
            kv_type=kv_type,
            weight_bytes=self.weight_bytes,
            mapped_bytes=0,
            kv_bytes=int(self.kv_elements(n_ctx) * KV_BYTES[kv_type]),
            scratch_bytes=_SCRATCH_LEAST + int(self.weight_bytes * _SCRATCH_SHARE) + logits,
            load_bytes=0,
            text_bytes=0,
        )


def of_file(path: Path) -> Figures:
    """The figures of a header. Raises `FormatError`, `UnsupportedError`."""
    with GgufFile(path, header_only=True) as file:
        metadata, name = file.metadata, file.architecture

        def number(key: str, default: int = 0) -> int:
            value = metadata.get(f"{name}.{key}")
            return value if type(value) is int and value >= 0 else default

        n_layers = number("block_count")
        n_heads = number("attention.head_count", 1) or 1
        head = number("embedding_length") // n_heads
        keys = number("attention.key_length", head)
        values = number("attention.value_length", head)
        n_kv = _kv_heads(metadata, name, n_layers, n_heads)
        tokens = metadata.get("tokenizer.ggml.tokens")
        n_vocab = len(tokens) if isinstance(tokens, list) else _USUAL_VOCABULARY
        return Figures(
            architecture=name,
            n_params=file.n_params,
            n_ctx=number("context_length"),
            weight_bytes=file.weight_bytes,
            kv_elements=lambda n: float(n * n_kv * (keys + values)),
            n_vocab=n_vocab,
        )


def of_catalogue(entry: Entry, attention: Attention | None) -> Figures:
    """What the catalogue says of a model."""
    return Figures(
        architecture=entry.architecture,
        n_params=entry.n_params,
        n_ctx=entry.n_ctx,
        weight_bytes=entry.size,
        kv_elements=lambda n: kv_bytes(attention, entry.n_params, n) / 2,
    )


def _kv_heads(metadata: Mapping[str, Any], name: str, n_layers: int, n_heads: int) -> int:
    """Heads of keys and values in all layers: one figure for each of them, or one for all."""
    value = metadata.get(f"{name}.attention.head_count_kv")
    if value is None:
        return n_layers * n_heads
    if isinstance(value, int):
        return n_layers * max(0, value)
    try:
        return sum(max(0, int(each)) for each in value)
    except (TypeError, ValueError):
        return n_layers * n_heads


def survey(figures: Figures, *, n_ctx: int = 0, room: Room | None = None) -> dict[str, Any]:
    """The plans of a model as `memory_plan.survey` has them, and `estimate` is True. room: that of
    this machine, if none is given."""
    room = room or Room.here()
    trained = figures.n_ctx or MIN_CONTEXT
    lengths = [n_ctx] if n_ctx else [n for n in CONTEXTS if n < trained] + [trained]
    plans = [figures.plan(n, kv_type) for n in lengths for kv_type in KV_BYTES]
    chosen, refused = None, ""
    least = figures.plan(n_ctx or min(MIN_CONTEXT, trained), "f16")
    if n_ctx > trained:
        refused = f"the context is {n_ctx} tokens, the model was trained on {trained}"
    elif room.free_bytes and least.needed_bytes > room.usable_bytes:
        refused = (
            f"the model needs about {least.needed_bytes / 1e6:,.0f} MB with a context of "
            f"{least.n_ctx} tokens; {room.free_bytes / 1e6:,.0f} MB of "
            f"{room.memory_bytes / 1e6:,.0f} MB are free"
        )
    else:
        chosen = document(figures.plan(n_ctx or _largest(figures, trained, room), "f16"), room)
    return {
        "architecture": figures.architecture,
        "parameters": figures.n_params,
        "trained": trained,
        "memory_bytes": room.memory_bytes,
        "free_bytes": room.free_bytes,
        "plans": [document(plan, room) for plan in plans],
        "chosen": chosen,
        "refused": refused,
        "estimate": True,
    }


def _largest(figures: Figures, trained: int, room: Room) -> int:
    """The most tokens whose cache takes no more than its share of what the weights leave free."""
    if not room.free_bytes:
        return trained
    low, high = min(MIN_CONTEXT, trained), trained

    def fits(n: int) -> bool:
        plan = figures.plan(n, "f16")
        left = room.free_bytes - plan.weight_bytes - plan.scratch_bytes
        return plan.kv_bytes <= left * KV_SHARE_OF_FREE_MEMORY

    if fits(trained):
        return trained
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
