"""What a model takes before any of it is taken: bytes of weights, cache and step buffers, from the
code that allocates them, and the context and the way of loading that fit this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from localllm import native
from localllm.engine import machine
from localllm.engine.model_info import ModelInfo, read_info
from localllm.engine.runner import KV_TYPES, blocks_needed, kv_type_number
from localllm.errors import ArgumentError, OutOfMemoryError
from localllm.native import ffi, lib
from localllm.store import quantization

#: The KV pool may take this share of the memory that is free beside the weights.
KV_SHARE_OF_FREE_MEMORY = 0.5
#: This share of the free memory is left to all else.
SHARE_KEPT = 1 / 16
MIN_CONTEXT = 512
MAX_BATCH_TOKENS = 512
#: Beside native memory a vocabulary takes this much of Python's for each token, at the most: with
#: Gemma 3, whose table of merges is built for a long text.
TEXT_BYTES_PER_TOKEN = 660
#: Contexts that `survey` has a row for.
CONTEXTS = (2048, 8192, 32768, 131072)
#: A conversation keeps its sequence and one fork of it (see paged.py).
N_SEQUENCES = 2
#: A server runs this many sequences at once, unless told otherwise.
N_SERVED = 8


@dataclass(frozen=True)
class MemoryPlan:
    """Native bytes of one model with one context; all are touched once the context is full."""

    n_ctx: int  # tokens
    kv_type: str
    weight_bytes: int  # packed, held in memory
    mapped_bytes: int  # read from the mapped file instead
    kv_bytes: int
    scratch_bytes: int  # buffers of a step
    load_bytes: int  # held beside the weights until the load ends
    text_bytes: int  # of the tokenizer, in Python: an estimate, in no sum of native bytes

    @property
    def total_bytes(self) -> int:
        """While the model runs, the mapped file left out: the system takes its pages back."""
        return self.weight_bytes + self.kv_bytes + self.scratch_bytes

    @property
    def peak_bytes(self) -> int:
        """The most native bytes that are held at once, load and run."""
        return self.weight_bytes + max(self.load_bytes, self.kv_bytes + self.scratch_bytes)

    @property
    def needed_bytes(self) -> int:
        """What has to be free before the load."""
        return self.peak_bytes + self.text_bytes


@dataclass(frozen=True)
class Room:
    """Memory of this machine, or of the cgroup that this process is in."""

    memory_bytes: int
    free_bytes: int  # 0: the system does not tell

    @classmethod
    def here(cls, freed_bytes: int = 0) -> Room:
        """freed_bytes: what is held now, and will be given back before."""
        facts = machine.facts()
        free = facts.free_bytes
        return cls(facts.memory_bytes, min(facts.memory_bytes, free + freed_bytes) if free else 0)

    def without(self, n_bytes: int) -> Room:
        """What is left beside something else."""
        if not self.free_bytes:
            return self
        return Room(self.memory_bytes, max(1, self.free_bytes - n_bytes))

    @property
    def usable_bytes(self) -> int:
        return self.free_bytes - int(self.free_bytes * SHARE_KEPT)


class Blueprint:
    """A model file as a load would make it, without its weights. The file may lack its data."""

    def __init__(self, path: str | Path, *, n_threads: int = 0, isa: str | None = None) -> None:
        """n_threads 0: as many as the machine allows. Raises the errors of a load, but those of
        memory."""
        self.path = Path(path)
        self._gguf = native.create(
            "llm_gguf *", lib.llm_gguf_open_header, lib.llm_gguf_close, native.path_bytes(path)
        )
        self.n_threads = n_threads or machine.facts().n_threads
        self._isa = ffi.new("char[]", native.utf8(isa, name="isa")) if isa else ffi.NULL
        self._packed, self._load_bytes = self._planned(raw=False)
        self.info: ModelInfo = read_info(self._packed, self.n_threads)

    def _planned(self, *, raw: bool) -> tuple[Any, int]:
        params, load_bytes = ffi.new("llm_model_params *"), ffi.new("uint64_t *")
        params.isa, params.raw_weights = self._isa, int(raw)
        handle = native.create(
            "llm_model *", lib.llm_model_plan, lib.llm_model_free,
            self._gguf, self.n_threads, params, load_bytes,
        )  # fmt: skip
        return handle, int(load_bytes[0])

    def kv_block_bytes(self, kv_type: str, group: int) -> int:
        return int(lib.llm_kv_block_bytes(self._packed, kv_type_number(kv_type), group))

    def kv_bytes(self, kv_type: str, n_tokens: int, n_sequences: int = N_SEQUENCES) -> int:
        """Bytes of a KV pool for `n_tokens` in n_sequences together, all layer groups."""
        batch = min(MAX_BATCH_TOKENS, n_tokens)
        return sum(
            blocks_needed(window, n_tokens, batch, n_sequences)
            * self.kv_block_bytes(kv_type, group)
            for group, window in enumerate(self.info.group_window)
        )

    def scratch_bytes(self, kv_type: str, n_ctx: int, n_sequences: int = 1) -> int:
        """Buffers of a step over n_sequences."""
        params, scratch = ffi.new("llm_exec_params *"), ffi.new("uint64_t *")
        params.max_tokens = max(n_sequences, min(MAX_BATCH_TOKENS, n_ctx))
        params.max_sequences = n_sequences
        native.call(
            lib.llm_exec_bytes,
            self._packed,
            kv_type_number(kv_type),
            self.n_threads,
            params,
            scratch,
        )
        return int(scratch[0])

    def plan(self, n_ctx: int, kv_type: str = "f16", *, raw: bool = False) -> MemoryPlan:
        """The bytes of a conversation of n_ctx tokens; raw: computed from the mapped file."""
        info, load_bytes = self.info, self._load_bytes
        if raw:
            handle, load_bytes = self._planned(raw=True)
            info = read_info(handle, self.n_threads)
            ffi.release(handle)
        return MemoryPlan(
            n_ctx=n_ctx,
            kv_type=kv_type,
            weight_bytes=info.weight_bytes,
            mapped_bytes=info.mapped_bytes,
            kv_bytes=self.kv_bytes(kv_type, n_ctx),
            scratch_bytes=self.scratch_bytes(kv_type, n_ctx),
            load_bytes=load_bytes,
            text_bytes=TEXT_BYTES_PER_TOKEN * self.info.n_vocab,
        )

    def close(self) -> None:
        for name in ("_packed", "_gguf"):
            if getattr(self, name) is not None:
                ffi.release(getattr(self, name))
                setattr(self, name, None)

    def __enter__(self) -> Blueprint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def fitting(
    blueprint: Blueprint,
    room: Room,
    *,
    n_ctx: int = 0,
    kv_type: str = "f16",
    raw: bool | None = None,
) -> MemoryPlan:
    """The plan to load by: n_ctx tokens, or for 0 the most that fits (at most what the model was
    trained on). raw None: the mapped file only where packed weights do not fit; True was asked for.

    Raises `ArgumentError` for a context beyond the trained one, and `OutOfMemoryError` with the
    numbers and what would fit instead.
    """
    trained = blueprint.info.n_ctx_train
    if n_ctx > trained:
        raise ArgumentError(
            f"the context is {n_ctx} tokens, the model was trained on {trained}",
            hint=f"use --ctx {trained} or less",
        )
    least = n_ctx or min(MIN_CONTEXT, trained)
    packed = blueprint.plan(least, kv_type)
    from_file = bool(raw)
    if raw is None and room.free_bytes and packed.needed_bytes > room.usable_bytes:
        from_file = True
        mapped = blueprint.plan(least, kv_type, raw=True)
        if mapped.needed_bytes > room.usable_bytes or mapped.mapped_bytes > room.memory_bytes:
            raise _does_not_fit(blueprint, packed, room, asked=n_ctx)
    if n_ctx or not room.free_bytes:
        return blueprint.plan(n_ctx or trained, kv_type, raw=from_file)
    return blueprint.plan(_largest(blueprint, kv_type, room, raw=from_file), kv_type, raw=from_file)


def shared_pool(
    blueprint: Blueprint, plan: MemoryPlan, room: Room, n_sequences: int
) -> tuple[int, int]:
    """(sequences, tokens) of a pool that as many as n_sequences share: the whole context for each,
    or as many tokens as take no more than the cache's share of what the weights leave free, but one
    whole context. Fewer sequences, if their windows alone take more."""
    if not room.free_bytes:
        return n_sequences, plan.n_ctx
    left = room.free_bytes - plan.weight_bytes - plan.scratch_bytes - plan.text_bytes

    def fits(n: int) -> bool:
        n_bytes = blueprint.kv_bytes(plan.kv_type, n, n_sequences)
        return n_bytes <= left * KV_SHARE_OF_FREE_MEMORY

    while n_sequences > 1 and not fits(plan.n_ctx):
        n_sequences //= 2
    low, high = plan.n_ctx, plan.n_ctx * n_sequences
    if fits(high):
        return n_sequences, high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return n_sequences, low


def _largest(blueprint: Blueprint, kv_type: str, room: Room, *, raw: bool) -> int:
    """The most tokens whose cache takes no more than its share of what the weights leave free."""
    trained = blueprint.info.n_ctx_train
    least = min(MIN_CONTEXT, trained)
    base = blueprint.plan(trained, kv_type, raw=raw)
    left = room.free_bytes - base.weight_bytes - base.scratch_bytes - base.text_bytes

    def fits(n: int) -> bool:
        return blueprint.kv_bytes(kv_type, n) <= left * KV_SHARE_OF_FREE_MEMORY

    if fits(trained):
        return trained
    low, high = least, trained
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _does_not_fit(
    blueprint: Blueprint, plan: MemoryPlan, room: Room, *, asked: int
) -> OutOfMemoryError:
    parts = (
        f"{gb(plan.weight_bytes)} of weights, {gb(plan.kv_bytes)} of cache for {plan.n_ctx} "
        f"tokens, {gb(plan.scratch_bytes)} of buffers, {gb(plan.text_bytes)} for the tokenizer"
    )
    return OutOfMemoryError(
        f"the model needs {gb(plan.needed_bytes)} ({parts}); {gb(room.free_bytes)} of "
        f"{gb(room.memory_bytes)} are free",
        hint=" ".join(_ways_out(blueprint, plan, room, asked)) or None,
    )


def _ways_out(blueprint: Blueprint, plan: MemoryPlan, room: Room, asked: int) -> list[str]:
    """What would fit: a smaller context, a smaller cache, a smaller quantization."""
    ways = []
    if asked:
        for kv_type in KV_TYPES:
            least = blueprint.plan(min(MIN_CONTEXT, asked), kv_type)
            if least.needed_bytes <= room.usable_bytes:
                n = _largest(blueprint, kv_type, room, raw=False)
                ways.append(f"--ctx {n} fits with --kv-type {kv_type}.")
    if not ways and (name := smaller_quantization(blueprint, plan, room)):
        ways.append(f"A file quantized to {name} or less would fit.")
    if not ways:
        ways.append("Close other programs, or take a smaller model: localllm recommend")
    if blueprint.plan(plan.n_ctx, plan.kv_type, raw=True).needed_bytes <= room.usable_bytes:
        ways.append("--mmap runs it from the disk, slowly.")
    return ways


def smaller_quantization(blueprint: Blueprint, plan: MemoryPlan, room: Room) -> str | None:
    """The largest quantization whose weights would fit beside the same cache, None if none does."""
    left = room.usable_bytes - (plan.needed_bytes - plan.weight_bytes)
    bits = 8 * left / max(1, blueprint.info.n_params)
    fitting_ones = [name for name in quantization.BITS if quantization.BITS[name] <= bits]
    return max(fitting_ones, key=lambda name: quantization.BITS[name], default=None)


def gb(n_bytes: int) -> str:
    """As plans and errors show it: `1.5 GB`, `250 MB`."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def survey(
    path: Path,
    *,
    n_ctx: int = 0,
    n_threads: int = 0,
    isa: str | None = None,
    freed_bytes: int = 0,
) -> dict[str, Any]:
    """What `localllm plan` shows, as plain data: plans for usual contexts and both KV types, and
    the one that a load would take (or why it would refuse)."""
    room = Room.here(freed_bytes)
    with Blueprint(path, n_threads=n_threads, isa=isa) as blueprint:
        trained = blueprint.info.n_ctx_train
        lengths = [n_ctx] if n_ctx else [n for n in CONTEXTS if n < trained] + [trained]
        plans = [blueprint.plan(n, kv_type) for n in lengths for kv_type in KV_TYPES]
        chosen, refused = None, ""
        try:
            chosen = document(fitting(blueprint, room, n_ctx=n_ctx), room)
        except (OutOfMemoryError, ArgumentError) as e:
            refused = f"{e.message}. {e.hint or ''}".rstrip()
        return {
            "architecture": blueprint.info.architecture,
            "parameters": blueprint.info.n_params,
            "trained": trained,
            "memory_bytes": room.memory_bytes,
            "free_bytes": room.free_bytes,
            "plans": [document(plan, room) for plan in plans],
            "chosen": chosen,
            "refused": refused,
            "estimate": False,
        }


def document(plan: MemoryPlan, room: Room) -> dict[str, Any]:
    """A plan as plain data, and whether there is room for it."""
    fits = not room.free_bytes or plan.needed_bytes <= room.usable_bytes
    return {
        **asdict(plan),
        "total_bytes": plan.total_bytes,
        "peak_bytes": plan.peak_bytes,
        "fits": fits,
    }
