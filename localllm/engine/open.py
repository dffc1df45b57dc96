"""What a session is made of: an engine, a tokenizer and a chat template, opened side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.engine import machine
from localllm.engine.choice import either
from localllm.engine.engine import Engine
from localllm.engine.kv_tier import TierOptions
from localllm.engine.memory_plan import (
    MAX_BATCH_TOKENS,
    N_SEQUENCES,
    Blueprint,
    MemoryPlan,
    Room,
    fitting,
    gb,
    shared_pool,
)
from localllm.engine.paged import PagedEngine
from localllm.engine.runner import Model, Runner
from localllm.errors import ArgumentError, OutOfMemoryError
from localllm.store.digest import modified_at, sampled_digest
from localllm.store.inspect import GgufFile
from localllm.text.beside_template import Choice, choose
from localllm.text.chat_template import ChatTemplate
from localllm.text.go_templates import is_go
from localllm.text.tokenizer import Tokenizer

THREADS_PER_CPU = 4
#: The hint where the cache of the context does not fit.
_LESS_CONTEXT = "use a smaller --ctx, or --kv-type q8_0, which takes about half"

Notice = Callable[[str], None]


@dataclass(frozen=True)
class OpenOptions:
    """What `Session.open` was asked for."""

    engine: str = "auto"
    n_threads: int = 0
    n_ctx: int = 0
    kv_type: str = "f16"
    isa: str | None = None
    template: str | None = None
    mmap: bool = False  # compute from the mapped file, whatever memory there is
    tiers: TierOptions | None = None  # where a service keeps what was computed; None: in the pool

    @property
    def swap_bytes(self) -> int:
        """Memory for what the pool gives up."""
        return self.tiers.ram_bytes if self.tiers is not None else 0

    def carried(self, n_ctx: int, n_threads: int) -> OpenOptions:
        """With what a model carries itself, where nothing was asked for. Another machine's number
        of threads may be more than makes sense here."""
        n_threads = self.n_threads or min(n_threads, os.cpu_count() or 1)
        return replace(self, n_ctx=self.n_ctx or n_ctx, n_threads=n_threads)


@dataclass(frozen=True)
class LoadPlan:
    """What a load will take of a room. n_pool: tokens of the pool that n_sequences share.
    swap_bytes: for what that gives up."""

    memory: MemoryPlan
    n_sequences: int
    n_pool: int
    kv_bytes: int
    swap_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Once it is loaded and all of its pool and swap space is in use."""
        memory = self.memory
        own = memory.weight_bytes + memory.scratch_bytes + memory.text_bytes
        return own + self.kv_bytes + self.swap_bytes

    def __str__(self) -> str:
        memory = self.memory
        weights = f"{gb(memory.weight_bytes)} for weights"
        if memory.mapped_bytes:
            weights += f" beside {gb(memory.mapped_bytes)} in the file"
        return (
            f"memory: {weights}, {gb(self.kv_bytes)} for a pool of {self.n_pool} tokens, "
            f"{gb(self.swap_bytes)} for swap space, "
            f"{gb(memory.scratch_bytes)} for buffers"
        )


@dataclass(frozen=True)
class TextSide:
    """What is read of a file beside its weights."""

    tokenizer: Tokenizer
    metadata: dict[str, Any]  # scalars and short arrays only
    quantization: str


@dataclass
class Parts:
    """Everything that one model file needs to talk."""

    path: Path
    options: OpenOptions
    engine: Engine
    text: TextSide
    architecture: str
    isa: str
    n_threads: int
    n_params: int
    weight_bytes: int
    arithmetic: int  # version of the engine's arithmetic, 0 if it promises none
    engine_version: str
    modified: tuple[int, ...] = ()  # see `modified_at`; before anything of the file was read

    @property
    def name(self) -> str:
        return str(self.text.metadata.get("general.name") or self.path.stem)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Made when it is first needed: a base model without one still continues texts."""
        return ChatTemplate.from_metadata(
            self.text.metadata, self.text.tokenizer, self.options.template
        )

    @cached_property
    def digest(self) -> str:
        """Of a file whose sha256 is not on record."""
        return sampled_digest(self.path)

    @cached_property
    def file_state(self) -> str:
        """Whatever is kept of answers for later must have been made with the same: a sample of the
        bytes, and the time, for bytes that the sample leaves out. A file that is replaced while it
        is loaded has the time of one and the sample of the other, as no later load has."""
        return f"{self.digest} {self.modified}"


def open_parts(
    path: Path,
    options: OpenOptions,
    *,
    progress: Callable[[float], None] | None = None,
    notice: Notice | None = None,
    n_sequences: int = 1,
    room: Room | None = None,
    tells_plan: bool = True,
    digest: str = "",
) -> Parts:
    """Loads a model file; see `Session.open`. n_sequences: as many run at once in our own engine,
    over a pool that they share; 1: one conversation at a time. room: the memory that our own engine
    may use; None: what is free. tells_plan: what several at once take of it is said. digest: of the
    file, if it is on record."""
    _check_threads(options.n_threads)
    say = notice or (lambda line: None)

    def native() -> Parts:
        tell = say if tells_plan and n_sequences > 1 else (lambda line: None)
        where = room or Room.here()
        return _open_native(path, options, progress, say, n_sequences, where, tell, digest)

    def second() -> Parts:
        from localllm.engine.llama_open import open_llama_cpp

        return open_llama_cpp(path, options, progress, say)

    modified = modified_at(path)
    if options.engine != "auto":
        parts = native() if options.engine == "native" else second()
    else:
        parts = either(native, second, path=path, say=say)
    parts.modified = modified
    return parts


def plan_load(blueprint: Blueprint, options: OpenOptions, n_sequences: int, room: Room) -> LoadPlan:
    """The plan that a load goes by. Raises what `memory_plan.fitting` raises."""
    raw = True if options.mmap else None
    swap = options.swap_bytes
    room = room.without(swap)
    try:
        plan = fitting(blueprint, room, n_ctx=options.n_ctx, kv_type=options.kv_type, raw=raw)
    except OutOfMemoryError as e:
        if not swap:
            raise
        raise OutOfMemoryError(
            f"{e.message} beside {gb(swap)} of swap space", "Use a smaller --swap-space."
        ) from e
    if n_sequences == 1:
        return LoadPlan(plan, 1, plan.n_ctx, plan.kv_bytes, swap)

    def over(n: int) -> MemoryPlan:
        scratch = blueprint.scratch_bytes(plan.kv_type, plan.n_ctx, n)
        return replace(plan, scratch_bytes=scratch)

    n_sequences, n_pool = shared_pool(blueprint, over(n_sequences), room, n_sequences)
    n_bytes = blueprint.kv_bytes(plan.kv_type, n_pool, n_sequences)
    return LoadPlan(over(n_sequences), n_sequences, n_pool, n_bytes, swap)


def _open_native(
    path: Path,
    options: OpenOptions,
    progress: Callable[[float], None] | None,
    say: Notice,
    n_sequences: int,
    room: Room,
    tell_plan: Notice,
    digest: str,
) -> Parts:
    reading = InBackground(lambda: read_text_side(path))
    with Blueprint(path, n_threads=options.n_threads, isa=options.isa) as blueprint:
        load = plan_load(blueprint, options, n_sequences, room)
        tell_plan(str(load))
        if load.n_sequences < n_sequences:
            tell_plan(
                f"memory is for {load.n_sequences} answers at once, {n_sequences} were asked for"
            )
        plan, n_sequences, n_pool = load.memory, load.n_sequences, load.n_pool
        trained = blueprint.info.n_ctx_train
    model = Model.load(
        path,
        n_threads=options.n_threads,
        isa=options.isa,
        raw_weights=plan.mapped_bytes > 0,
        digest=digest,
        progress=progress,
    )
    if model.info.mapped_bytes and not options.mmap:
        why = (
            "could not be given memory, though it is free (is there a limit, as of `ulimit -v`?)"
            if model.info.was_refused
            else "do not fit into the free memory"
        )
        say(
            f"the weights, {model.info.mapped_bytes >> 20} MiB, {why}: "
            "they are read from the file as they are needed, which is slower"
        )
    if not options.n_ctx and plan.n_ctx < trained:
        say(
            f"the context is {plan.n_ctx} of {trained} tokens: its cache may take half of the free "
            "memory"
        )
    try:
        text: TextSide = reading.result()
        n_vocab = text.tokenizer.n_vocab
        if n_vocab > model.info.n_vocab:
            raise ArgumentError(
                f"the tokenizer has {n_vocab} tokens, the weights {model.info.n_vocab}"
            )
        n_ctx = plan.n_ctx
        runner = Runner(
            model,
            kv_type=options.kv_type,
            n_ctx_tokens=n_pool,
            max_batch_tokens=max(n_sequences, min(MAX_BATCH_TOKENS, n_ctx)),
            max_sequences=n_sequences,
            n_forks=N_SEQUENCES - 1 if n_sequences == 1 else 0,
            n_sampled=n_vocab,
        )
    except OutOfMemoryError as e:
        model.close()
        raise OutOfMemoryError(e.message, hint=_LESS_CONTEXT) from e
    except BaseException:
        model.close()
        raise
    info = model.info
    return Parts(
        path=path,
        options=options,
        engine=PagedEngine(model, runner, n_ctx),
        text=text,
        architecture=info.architecture,
        isa=info.isa,
        n_threads=info.n_threads,
        n_params=info.n_params,
        weight_bytes=info.weight_bytes + info.mapped_bytes,
        arithmetic=machine.facts().arithmetic_version,
        engine_version="native",
    )


def beside_template(path: Path, beside: str) -> Choice:
    """The template for `OpenOptions` of a text that lies beside the file: see
    `text.beside_template`. The header tells, so what cannot be used is refused before weights are
    read. Raises its errors, and those of `GgufFile`."""
    if not is_go(beside):
        return choose({}, beside)
    with GgufFile(path) as file:
        return choose(file.metadata, beside)


def _check_threads(n_threads: int) -> None:
    """Many more threads than CPUs only take turns waiting for each other."""
    limit = THREADS_PER_CPU * machine.facts().n_cpus
    if n_threads > limit:
        raise ArgumentError(
            f"{n_threads} threads were asked for, at most {limit} make sense on this machine",
            hint="leave out --threads: the default fits the machine",
        )


def read_text_side(path: Path) -> TextSide:
    """The tokenizer, the metadata that is not vocabulary, and the quantization of a file."""
    with GgufFile(path) as file:
        tokenizer = Tokenizer.from_metadata(
            file.metadata, cache_folder=paths.current().cache / "tokenizers"
        )
        metadata = {
            key: file.metadata[key]
            for key in file.metadata
            if not file.metadata.type_of(key).endswith("[]")
        }
        return TextSide(tokenizer, metadata, file.quantization)


class InBackground:
    """Runs a function beside the caller; `result` waits and re-raises what it raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, name="open-text", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as e:
            self._error = e

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
