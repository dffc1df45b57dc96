"""What a session is made of: weights, KV pool, tokenizer, chat template, opened side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.engine import machine
from localllm.engine.blocks import BLOCK_TOKENS
from localllm.engine.runner import Model, Runner
from localllm.errors import ArgumentError, OutOfMemoryError
from localllm.store.inspect import GgufFile
from localllm.text.chat_template import ChatTemplate
from localllm.text.tokenizer import Tokenizer

#: The KV pool may take this share of the memory that is free once the weights are in.
KV_SHARE_OF_FREE_MEMORY = 0.5
MIN_CONTEXT = 512
THREADS_PER_CPU = 4
MAX_BATCH_TOKENS = 512


@dataclass
class Parts:
    """Everything that one model file needs to talk."""

    model: Model
    runner: Runner
    tokenizer: Tokenizer
    metadata: dict[str, Any]  # scalars and short arrays only
    n_ctx: int
    name: str
    quantization: str

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Made when it is first needed: a base model without one still continues texts."""
        return ChatTemplate.from_metadata(self.metadata, self.tokenizer)


def open_parts(
    path: Path,
    *,
    n_threads: int = 0,
    n_ctx: int = 0,
    kv_type: str = "f16",
    isa: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Parts:
    """Loads a model file for one conversation at a time; see `Session.open`."""
    _check_threads(n_threads)
    tokenizers = _InBackground(lambda: _read_text_side(path))
    model = Model.load(path, n_threads=n_threads, isa=isa, progress=progress)
    try:
        tokenizer, metadata, quantization = tokenizers.result()
        if tokenizer.n_vocab > model.info.n_vocab:
            raise ArgumentError(
                f"the tokenizer has {tokenizer.n_vocab} tokens, the weights {model.info.n_vocab}"
            )
        n_ctx = context_that_fits(model, kv_type, n_ctx)
        runner = Runner(
            model,
            kv_type=kv_type,
            n_ctx_tokens=n_ctx,
            max_batch_tokens=min(MAX_BATCH_TOKENS, n_ctx),
            max_sequences=1,
            n_sampled=tokenizer.n_vocab,
        )
    except BaseException:
        model.close()
        raise
    name = str(metadata.get("general.name") or path.stem)
    return Parts(model, runner, tokenizer, metadata, n_ctx, name, quantization)


def _check_threads(n_threads: int) -> None:
    """Many more threads than CPUs only take turns waiting for each other."""
    limit = THREADS_PER_CPU * machine.facts().n_cpus
    if n_threads > limit:
        raise ArgumentError(
            f"{n_threads} threads were asked for, at most {limit} make sense on this machine",
            hint="leave out --threads: the default fits the machine",
        )


def context_that_fits(model: Model, kv_type: str, asked: int) -> int:
    """Tokens of context: what was asked for, or the trained length cut to what memory allows.

    Raises OutOfMemoryError with the numbers when `asked` tokens cannot fit, and ArgumentError when
    they are more than the model was trained on.
    """
    info = model.info
    if asked > info.n_ctx_train:
        raise ArgumentError(
            f"the context is {asked} tokens, the model was trained on {info.n_ctx_train}",
            hint=f"use --ctx {info.n_ctx_train} or less",
        )
    free = machine.facts().free_bytes
    wanted = asked or info.n_ctx_train
    if not free or kv_bytes(model, kv_type, wanted) <= free * KV_SHARE_OF_FREE_MEMORY:
        return wanted
    if asked:
        need = kv_bytes(model, kv_type, asked)
        if need <= free:
            return asked
        raise OutOfMemoryError(
            f"a context of {asked} tokens needs {need >> 20} MiB, {free >> 20} MiB are free",
            hint="use a smaller --ctx, or --kv-type q8_0, which takes about half",
        )
    low, high = min(MIN_CONTEXT, wanted), wanted
    while high - low > BLOCK_TOKENS:
        middle = (low + high) // 2
        fits = kv_bytes(model, kv_type, middle) <= free * KV_SHARE_OF_FREE_MEMORY
        low, high = (middle, high) if fits else (low, middle)
    return low


def kv_bytes(model: Model, kv_type: str, n_tokens: int) -> int:
    """Bytes of keys and values of one sequence of `n_tokens`, all layer groups."""
    total = 0
    for group, window in enumerate(model.info.group_window):
        seen = min(n_tokens, window + MAX_BATCH_TOKENS) if window else n_tokens
        total += -(-seen // BLOCK_TOKENS) * model.kv_block_bytes(kv_type, group)
    return total


def _read_text_side(path: Path) -> tuple[Tokenizer, dict[str, Any], str]:
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
        return tokenizer, metadata, file.quantization


class _InBackground:
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
