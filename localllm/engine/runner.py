"""A model and its executor: from tokens and sequences to flat arrays, and back.

`Model` is the loaded weights, `Runner` a KV pool with an executor over it. Both are used by one
thread at a time; `cancel` may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm import native
from localllm.engine.batch import Arrays, lay_out
from localllm.engine.blocks import (
    BLOCK_TOKENS,
    ROLLBACK_TOKENS,
    BlockPool,
    BlockTable,
    SequenceState,
)
from localllm.engine.model_info import read_info
from localllm.engine.sampling import LogprobRows, Sampled, Sampler
from localllm.errors import ArgumentError, CancelledError, FileError, LocalLLMError
from localllm.native import ffi, lib
from localllm.store.digest import unchanged_since

MAX_TOUCHES = 4
"""So often one step looks at all of a mapped file that is touched again and again."""
KV_TYPES = {"f16": 0, "q8_0": 1}


class Model:
    """The weights of a GGUF file, ready to run, and the threads that run them."""

    def __init__(self, gguf: Any, threads: Any, handle: Any, path: Path, digest: str = "") -> None:
        self._gguf, self._threads, self.handle = gguf, threads, handle
        self._path, self._digest = path, digest
        self.threads_handle = threads
        self.info = read_info(handle, lib.llm_threads_count(threads))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        n_threads: int = 0,
        isa: str | None = None,
        raw_weights: bool = False,
        panel_limit: int = 0,
        digest: str = "",
        progress: Callable[[float], None] | None = None,
    ) -> Model:
        """Loads a file (or the split set it belongs to).

        n_threads 0: as many as the machine allows. raw_weights: compute from the mapped file, with
        less memory, slower, and the same bits; this is also what happens, and
        `info.mapped_bytes` says so, if the weights in memory would take more than panel_limit
        bytes (0: what is free). digest: of the file, for `accepts_touch`. progress is called with
        0.0 .. 1.0 from this thread.
        Ctrl-C ends the load. Raises FormatError, UnsupportedError, FileError, OutOfMemoryError.
        """
        gguf = native.create(
            "llm_gguf *", lib.llm_gguf_open, lib.llm_gguf_close, native.path_bytes(path)
        )
        threads = native.create(
            "llm_threads *", lib.llm_threads_create, lib.llm_threads_destroy, n_threads
        )
        permille, cancel = ffi.new("int32_t *"), ffi.new("int32_t *")
        params = ffi.new("llm_model_params *")
        isa_bytes = ffi.new("char[]", native.utf8(isa, name="isa")) if isa else ffi.NULL
        params.isa, params.raw_weights = isa_bytes, int(raw_weights)
        params.panel_limit = panel_limit
        params.progress, params.cancel = permille, cancel

        result: list[Any] = []

        def work() -> None:
            try:
                result.append(
                    native.create(
                        "llm_model *", lib.llm_model_load, lib.llm_model_free, gguf, threads, params
                    )
                )
            except LocalLLMError as e:
                result.append(e)

        # The load runs beside this thread, so that Ctrl-C and the progress bar stay alive.
        worker = threading.Thread(target=work, name="model-load")
        worker.start()
        try:
            while worker.is_alive():
                worker.join(0.05)
                if progress is not None:
                    progress(permille[0] / 1000)
        except BaseException:
            cancel[0] = 1
            worker.join()
            raise
        if isinstance(result[0], LocalLLMError):
            raise result[0]
        return cls(gguf, threads, result[0], Path(path), digest)

    def accepts_touch(self, at_work: Callable[[], None]) -> bool:
        """After a `FileError` of a step: whether the mapped file was only touched, which its whole
        content tells, and the sha256 that it was loaded by. Then steps go on. No step may run
        meanwhile; `at_work` is called after each piece, and what it raises ends this."""
        if self._gguf is None or lib.llm_gguf_n_parts(self._gguf) != 1:
            return False
        written_ns = unchanged_since(self._path, self._digest, at_work)
        if written_ns is None:
            return False
        lib.llm_gguf_expect_written(self._gguf, written_ns)
        return True

    def kv_block_bytes(self, kv_type: str, group: int) -> int:
        return int(lib.llm_kv_block_bytes(self.handle, kv_type_number(kv_type), group))

    def close(self) -> None:
        """Frees the memory. Runners of this model must be closed before."""
        for name in ("handle", "_threads", "_gguf"):
            if getattr(self, name) is not None:
                ffi.release(getattr(self, name))
                setattr(self, name, None)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Feed:
    """New tokens of one sequence in a step; sample asks for the token after the last. sampler: the
    sequence's own, which then knows the sampled token; None: greedy. next_tokens: None, or for each
    token one whose log probability behind it is wanted; -1: none."""

    sequence: SequenceState
    tokens: Sequence[int]
    sample: bool = True
    sampler: Sampler | None = None
    next_tokens: Sequence[int] | None = None


@dataclass(frozen=True)
class StepResult:
    """tokens [n_feeds]: sampled token, or None where none was asked for.

    logits: None, [n_feeds, n_vocab] (rows of feeds that sample), or with all_logits
    [n_tokens, n_vocab], feed after feed. logprobs: None, or one row per feed. next_logprobs: of
    the next tokens of feeds, by feed.
    """

    tokens: list[int | None]
    logits: npt.NDArray[np.float32] | None = None
    logprobs: LogprobRows | None = None
    next_logprobs: Mapping[int, list[Sampled]] = field(default_factory=dict)

    def sampled(self, feed: int) -> Sampled:
        """What was sampled for a feed that asked for it."""
        token = self.tokens[feed]
        if token is None:
            raise ArgumentError(f"feed {feed} of the step asked for no sample")
        return Sampled(token) if self.logprobs is None else self.logprobs.sampled(feed)


class Runner:
    """A KV pool and an executor over a model.

    n_ctx_tokens: tokens that the pool's full-attention group can hold, over all sequences.
    max_batch_tokens, max_sequences: limits of one step. n_forks: sequences that are kept beside
    those that run and share their full-attention blocks. n_sampled: only token ids below it are
    sampled, for weights with more rows than the tokenizer has tokens (0: all).

    Raises ArgumentError, OutOfMemoryError.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_type: str = "f16",
        n_ctx_tokens: int = 4096,
        max_batch_tokens: int = 512,
        max_sequences: int = 16,
        n_forks: int = 0,
        n_sampled: int = 0,
    ) -> None:
        if n_ctx_tokens < 1:
            raise ArgumentError(f"the context is {n_ctx_tokens} tokens, at least 1 is needed")
        self.model = model
        self.max_batch_tokens, self.max_sequences = max_batch_tokens, max_sequences
        n_kept = max_sequences + n_forks
        capacity = [
            blocks_needed(window, n_ctx_tokens, max_batch_tokens, n_kept)
            for window in model.info.group_window
        ]
        self.blocks = BlockPool(capacity)
        self._pool = native.create(
            "llm_kv_pool *",
            lib.llm_kv_pool_create,
            lib.llm_kv_pool_free,
            model.handle,
            kv_type_number(kv_type),
            ffi.new("int32_t[]", capacity),
        )
        self._cancel, self._progress = ffi.new("int32_t *"), ffi.new("uint32_t *")
        params = ffi.new("llm_exec_params *")
        params.max_tokens, params.max_sequences = max_batch_tokens, max_sequences
        params.n_sampled = n_sampled
        params.cancel, params.progress = self._cancel, self._progress
        self._exec = native.create(
            "llm_exec *",
            lib.llm_exec_create,
            lib.llm_exec_free,
            model.handle,
            self._pool,
            model.threads_handle,
            params,
        )
        groups = range(model.info.n_groups)
        self.block_bytes = tuple(model.kv_block_bytes(kv_type, group) for group in groups)
        self.kv_bytes = sum(a * b for a, b in zip(capacity, self.block_bytes, strict=True))
        self.scratch_bytes = int(lib.llm_exec_scratch_bytes(self._exec))

    def new_sequence(self) -> SequenceState:
        return SequenceState(BlockTable(self.blocks, self.model.info.group_window))

    def fork(self, sequence: SequenceState) -> SequenceState:
        """A sequence with the same tokens, sharing all blocks until one of them writes."""
        return SequenceState(sequence.table.fork(), sequence.n_computed)

    def free(self, sequence: SequenceState) -> None:
        sequence.table.clear()
        sequence.n_computed = 0

    def release_idle(self) -> None:
        """Gives the memory of free blocks back to the system."""
        for group in range(self.blocks.n_groups):
            free = np.array(self.blocks.free_blocks(group), dtype=np.int32)
            if free.size:
                pointer = native.array_in(free, np.int32, name="blocks")
                native.call(lib.llm_kv_release_blocks, self._pool, group, pointer, free.size)

    def read_block(self, group: int, block: int, n_tokens: int) -> bytes:
        """The contents of a block's first n_tokens; the rest is zero."""
        content = np.empty(self.block_bytes[group], dtype=np.uint8)
        out = native.array_out(content, np.uint8, name="content")
        native.call(lib.llm_kv_read_block, self._pool, group, block, n_tokens, out)
        return content.tobytes()

    def write_block(self, group: int, block: int, content: bytes) -> None:
        """What `read_block` has read, of a pool alike."""
        data = np.frombuffer(content, dtype=np.uint8)
        if data.size != self.block_bytes[group]:
            raise ArgumentError(
                f"a block of layer group {group} has {self.block_bytes[group]} bytes, "
                f"not {data.size}"
            )
        pointer = native.array_in(data, np.uint8, name="content")
        native.call(lib.llm_kv_write_block, self._pool, group, block, pointer)

    def cancel(self) -> None:
        """Ends the running step, and every later one until `reset_cancel`, with CancelledError.
        May be called from another thread."""
        self._cancel[0] = 1

    def reset_cancel(self) -> None:
        self._cancel[0] = 0

    @property
    def progress(self) -> int:
        """A number that changes several times a second while a step computes, however long it
        takes. From any thread."""
        return int(self._progress[0])

    def step(
        self,
        feeds: Iterable[Feed],
        *,
        want_logits: bool = False,
        all_logits: bool = False,
        n_logprobs: int | None = None,
        n_next_logprobs: int = 0,
        check: bool = True,
    ) -> StepResult:
        """Computes all new tokens of all feeds in one step. n_logprobs: log probabilities of the
        sampled token and of this many likeliest ones (0 to 20) are wanted; n_next_logprobs: the
        same for the next tokens of feeds that have any, and their ranks, which excludes logits.
        check: a sequence whose output is not a number (NaN) is an error; else its token is -1.

        Raises CancelledError, PoolFullError, ArgumentError; then no feed has advanced and no
        sampler has accepted a token.
        """
        feeds = list(feeds)
        asking = [i for i, feed in enumerate(feeds) if feed.next_tokens is not None]
        n_tokens = sum(len(feed.tokens) for feed in feeds)
        next_rows = LogprobRows(n_tokens, n_next_logprobs, ranks=True) if asking else None
        arrays = self._batch(feeds, 0, next_rows)
        n_rows = n_tokens if all_logits else len(feeds)
        logits = None
        if want_logits or all_logits:
            logits = np.empty((n_rows, self.model.info.n_vocab), dtype=np.float32)
        pointer = (
            ffi.NULL if logits is None else native.array_out(logits, np.float32, name="logits")
        )
        rows = None if n_logprobs is None else LogprobRows(len(feeds), n_logprobs)
        out = ffi.new("int32_t[]", len(feeds))
        self._run(
            lib.llm_exec_step,
            self._exec,
            arrays.batch,
            int(all_logits),
            out,
            pointer,
            ffi.NULL if rows is None else rows.pointer,
        )
        for feed in feeds:
            feed.sequence.n_computed += len(feed.tokens)
        tokens = [out[i] if feed.sample else None for i, feed in enumerate(feeds)]
        if check:
            self._check_sampled(tokens)
        told = {i: _next_of(feeds, i, next_rows) for i in asking if next_rows is not None}
        return StepResult(tokens, logits, rows, told)

    def _run(self, *call: Any, n_done: Any = None) -> None:
        """A native call, once more if all that failed it was a touch of the file. n_done: where it
        counts the steps that it finished."""
        for n_left in reversed(range(MAX_TOUCHES + 1)):
            try:
                native.call(*call)
                return
            except FileError:
                if n_done is not None and n_done[0]:
                    return  # these steps were of the right file; the next call looks at it again
                if not n_left or not self.model.accepts_touch(self._at_work):
                    raise

    def _at_work(self) -> None:
        self._progress[0] = (self._progress[0] + 1) % 2**32
        if self._cancel[0]:
            raise CancelledError("the step was cancelled")

    def prefill(self, feed: Feed) -> StepResult:
        """A feed of any length, in steps of at most max_batch_tokens; samples after the last."""
        tokens, size = list(feed.tokens), self.max_batch_tokens
        last = (len(tokens) - 1) // size * size
        for begin in range(0, last, size):
            self.step([Feed(feed.sequence, tokens[begin : begin + size], sample=False)])
        return self.step([Feed(feed.sequence, tokens[last:], feed.sample, feed.sampler)])

    def decode(
        self,
        feeds: Iterable[Feed],
        k: int,
        stop_tokens: Sequence[int] = (),
        *,
        n_logprobs: int | None = None,
        check: bool = True,
    ) -> list[list[Sampled]]:
        """Up to k steps, each sequence fed its own last sample; one token per feed to begin with.

        Returns per feed the sampled tokens, equally many for all: fewer than k when one of them is
        a stop token, or -1 (see `step`), or the run was cancelled after a step.
        """
        feeds = list(feeds)
        if any(len(feed.tokens) != 1 for feed in feeds):
            raise ArgumentError("decode takes exactly one token of each sequence")
        arrays = self._batch(feeds, k - 1, None)
        out = np.empty((k, len(feeds)), dtype=np.int32)
        rows = None if n_logprobs is None else LogprobRows(k * len(feeds), n_logprobs)
        stop, n_done = ffi.new("int32_t[]", list(stop_tokens)), ffi.new("int32_t *")
        self._run(
            lib.llm_exec_decode,
            self._exec,
            arrays.batch,
            k,
            stop,
            len(stop_tokens),
            native.array_out(out, np.int32, name="out_tokens"),
            ffi.NULL if rows is None else rows.pointer,
            n_done,
            n_done=n_done,
        )
        for feed in feeds:
            feed.sequence.n_computed += n_done[0]
        tokens = out[: n_done[0]].tolist()
        if check:
            self._check_sampled([token for row in tokens for token in row])
        return [
            [
                Sampled(row[i]) if rows is None else rows.sampled(step * len(feeds) + i)
                for step, row in enumerate(tokens)
            ]
            for i in range(len(feeds))
        ]

    def _check_sampled(self, tokens: Iterable[int | None]) -> None:
        if any(token == -1 for token in tokens):
            raise not_a_number()

    def _copy_block(self, group: int, source: int, destination: int) -> None:
        native.call(lib.llm_kv_copy_block, self._pool, group, source, destination)

    def _batch(self, feeds: list[Feed], extra_tokens: int, next_rows: LogprobRows | None) -> Arrays:
        """Makes room in the pool and lays the feeds out as an `llm_batch`."""
        if not feeds or len({id(feed.sequence) for feed in feeds}) != len(feeds):
            raise ArgumentError("a step needs at least one feed, and each sequence only once")
        for feed in feeds:
            if not len(feed.tokens):
                raise ArgumentError("a feed holds no token")
            table, first = feed.sequence.table, feed.sequence.n_computed
            table.drop_left_behind(first)
            table.prepare(first, len(feed.tokens) + extra_tokens, self._copy_block)
        return lay_out(feeds, self.blocks.n_groups, next_rows)

    def close(self) -> None:
        for name in ("_exec", "_pool"):
            if getattr(self, name) is not None:
                ffi.release(getattr(self, name))
                setattr(self, name, None)


def _next_of(feeds: list[Feed], i: int, rows: LogprobRows) -> list[Sampled]:
    """Of the next tokens of feed i, those that it has."""
    first = sum(len(feed.tokens) for feed in feeds[:i])
    wanted = feeds[i].next_tokens or ()
    return [rows.sampled(first + at) for at, token in enumerate(wanted) if token >= 0]


def not_a_number() -> LocalLLMError:
    return LocalLLMError(
        "the model's output is not a number (NaN) for this sequence",
        hint="the file may be damaged: check it, or pull it again",
    )


def blocks_needed(window: int, n_ctx_tokens: int, max_batch_tokens: int, n_sequences: int) -> int:
    """KV blocks of a layer group: for each sequence a partly filled one more; a window needs no
    more than the window, a step and what may be rolled back."""
    full = -(-n_ctx_tokens // BLOCK_TOKENS) + n_sequences
    if not window:
        return full
    seen = window + max_batch_tokens + ROLLBACK_TOKENS
    return min(full, (-(-seen // BLOCK_TOKENS) + 2) * n_sequences)


def kv_type_number(name: str) -> int:
    """The native number of a KV type. Raises `ArgumentError`."""
    if name not in KV_TYPES:
        raise ArgumentError(
            f"KV type {name!r} is not known", hint=f"use one of {', '.join(KV_TYPES)}"
        )
    return KV_TYPES[name]
