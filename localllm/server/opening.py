"""From a model file to a `Service`, and what that takes of the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

# `X as X`: the command line sees the engine only through here.
from localllm.engine.kv_tier import TierOptions as TierOptions
from localllm.engine.machine import free_to_the_system as free_to_the_system
from localllm.engine.memory_plan import N_SERVED, Blueprint
from localllm.engine.memory_plan import Room as Room
from localllm.engine.open import OpenOptions as OpenOptions
from localllm.engine.open import beside_template, open_parts, plan_load
from localllm.engine.paged import PagedEngine
from localllm.engine.request import Service
from localllm.engine.serial import SerialService
from localllm.engine.service import NativeService
from localllm.errors import OutOfMemoryError, UnsupportedError

COMFORTABLE_CONTEXT = 8192
"""Other models are unloaded for one that would get a smaller context, if it can have more."""
_SECOND_ENGINE = 1.25
"""What the second engine takes, as a multiple of the file, before it has been asked."""

Notice = Callable[[str], None]


@dataclass(frozen=True)
class ModelFile:
    """A file, and what goes with it. beside: a template that came with the model."""

    path: Path
    name: str
    digest: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Need:
    """What a model needs to be loaded with a good context, whether the room that was asked about
    has that, and what a load into it will hold, with a smaller context if it must; 0 if there is
    no such load."""

    needed_bytes: int
    fits: bool
    held_bytes: int


def memory_need(file: ModelFile, options: OpenOptions, room: Room, n_sequences: int) -> Need:
    """Reads the file's header. Raises what `Blueprint` raises, and `ArgumentError` for a context
    that the model cannot have."""
    try:
        if options.engine == "llama.cpp":
            raise UnsupportedError("not ours")
        with Blueprint(file.path, n_threads=options.n_threads, isa=options.isa) as blueprint:
            n_ctx = options.n_ctx or min(blueprint.info.n_ctx_train, COMFORTABLE_CONTEXT)
            plan = blueprint.plan(n_ctx, options.kv_type, raw=options.mmap)
            needed = plan.needed_bytes + options.swap_bytes
            fits = not room.free_bytes or needed <= room.usable_bytes
            try:
                held = plan_load(blueprint, options, n_sequences, room).held_bytes
            except OutOfMemoryError:
                if fits:
                    raise
                held = 0
            return Need(needed, fits, held)
    except UnsupportedError:
        needed = int(file.path.stat().st_size * _SECOND_ENGINE)
        fits = not room.free_bytes or needed <= room.usable_bytes
        return Need(needed, fits, needed if fits else 0)


def open_service(
    file: ModelFile,
    options: OpenOptions,
    *,
    max_queue: int,
    n_sequences: int = N_SERVED,
    progress: Callable[[float], None] | None = None,
    notice: Notice | None = None,
    room: Room | None = None,
) -> Service:
    """Loads a model for many requests, n_sequences of them at once in our own engine, which uses no
    more than the room. Raises what `open_parts` raises."""
    if options.template is None and file.beside:
        choice = beside_template(file.path, file.beside)
        options = replace(options, template=choice.template)
        if choice.note and notice is not None:
            notice(choice.note)
    parts = open_parts(
        file.path,
        options,
        progress=progress,
        notice=notice,
        n_sequences=n_sequences,
        room=room,
        digest=file.digest,
    )
    try:
        kind = NativeService if isinstance(parts.engine, PagedEngine) else SerialService
        return kind(parts, file.name, file.digest or parts.digest, max_queue)
    except BaseException:
        parts.engine.close()
        raise
