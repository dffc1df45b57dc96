"""What serving costs inside the engine: memory of the cache, the prefix cache's own time, the time
between native steps, and how soon a cancelled request has given up its blocks."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Key, Row
from localllm.engine.blocks import BLOCK_TOKENS, BlockPool, BlockTable, PoolFullError
from localllm.engine.open import OpenOptions, open_parts
from localllm.engine.paged import PagedEngine
from localllm.engine.prefix_cache import PrefixCache
from localllm.engine.request import Event, Failed, Finished, Piece, Request
from localllm.engine.runner import Feed, Runner
from localllm.engine.service import NativeService
from localllm.params import GenerateParams

STREAMS, STREAM_TOKENS = 8, 192
PROMPT = 2048
POOL_TOKENS = 8 * 8192  # eight slots of 8k in equal memory
CANCELS = 60
PHASES = ("queue", "prompt", "decode")
SLOTS = (8192, 4096)
_MIXED, _SHORT = "sequences of 512 to 4096 tokens", "sequences of 200 tokens"
_PREFIX = f"prefix cache without a hit, {PROMPT} tokens"
_BUSY = ", a busy Python thread beside"


def _split_test(slot: int) -> str:
    return f"{_MIXED} in {POOL_TOKENS} slots of the cache, split into parts of {slot}"


def _idle_test(what: str) -> str:
    return f"idle between native steps, {STREAMS} streams{what}"


def _cancels(quick: bool) -> int:
    """Cancelled requests of a phase."""
    return CANCELS // (4 if quick else 1) // len(PHASES)


def _cancel_test(phase: str, n: int) -> str:
    return f"cancelled in the {phase}, slowest of {n}"


def keys(name: str, quick: bool) -> list[Key]:
    return [
        *((f"cache slots that are live, {what}", "any") for what in (_MIXED, _SHORT)),
        *((_split_test(slot), "any") for slot in SLOTS),
        (_PREFIX, name),
        *((_idle_test(what), name) for what in ("", _BUSY)),
        *((_cancel_test(phase, _cancels(quick)), name) for phase in PHASES),
    ]


def measure(name: str, path: Path, n_threads: int, quick: bool) -> Iterator[Row]:
    yield from _memory(name)
    parts = open_parts(path, OpenOptions(n_ctx=4096, n_threads=n_threads), n_sequences=STREAMS)
    assert isinstance(parts.engine, PagedEngine)
    runner = parts.engine.runner
    yield from _prefix(name, runner, 1 if quick else 3)
    service = NativeService(parts, name, "bench")
    try:
        yield from _idle(name, service, runner, 1 if quick else 3)
        yield from _cancelled(name, service, _cancels(quick))
    finally:
        service.close()


def _memory(name: str) -> Iterator[Row]:
    """G8, with the engine's own pool and tables; what blocks hold does not matter."""
    draw = random.Random(8)
    mixed = [draw.randint(512, 4096) for _ in range(200)]
    for what, lengths, goal in (
        (_MIXED, mixed, "goal 97 %, floor 94 %"),
        (_SHORT, [200] * 200, "goal 88 %"),
    ):
        n_blocks = _fill(lengths, sum(lengths) // BLOCK_TOKENS + len(lengths))[1]
        share = sum(lengths) / (BLOCK_TOKENS * n_blocks)
        yield Row(
            f"cache slots that are live, {what}", "any", "tokens", sum(lengths),
            roof="tokens allocated", roof_value=BLOCK_TOKENS * n_blocks, share=share, note=goal,
        )  # fmt: skip
    n_ours = _fill(mixed, POOL_TOKENS // BLOCK_TOKENS)[0]
    for slot in SLOTS:
        n_slots = POOL_TOKENS // slot
        yield Row(
            _split_test(slot), "any", "sequences", n_ours, n_slots, n_ours / n_slots,
            note="goal 3x" if slot == 8192 else "split for the longest that comes, not the context",
        )  # fmt: skip


def _fill(lengths: list[int], n_blocks: int) -> tuple[int, int]:
    """(sequences, blocks of these) that a pool takes until the next does not fit."""
    pool = BlockPool([n_blocks])
    n, n_used = 0, 0
    for length in lengths:
        try:
            BlockTable(pool, (0,)).prepare(0, length, lambda group, source, to: None)
        except PoolFullError:
            break
        n, n_used = n + 1, n_blocks - pool.n_free(0)
    return n, n_used


def _prefix(name: str, runner: Runner, n_rounds: int) -> Iterator[Row]:
    """G9 and G13: what looking up and storing a prompt costs that hits nothing; and the logits
    behind a hit, in other chunks, beside those of a cold prompt."""
    windows = runner.model.info.group_window
    cache = PrefixCache(runner.blocks, windows, b"bench")
    shares = []
    for i in range(n_rounds):
        draw = random.Random(i)
        tokens = [draw.randrange(1000, 40000) for _ in range(PROMPT)]
        own, began = 0.0, time.perf_counter()
        _, table, mark = cache.find(tokens)
        own += time.perf_counter() - began
        sequence = runner.new_sequence()
        sequence.table = table
        computed = 0.0
        for begin in range(0, PROMPT, 256):
            part = tokens[begin : begin + 256]
            began = time.perf_counter()
            result = runner.step([Feed(sequence, part)], want_logits=begin + 256 == PROMPT)
            computed += time.perf_counter() - began
            began = time.perf_counter()
            mark = cache.store(tokens[: begin + 256], sequence.table, mark)
            own += time.perf_counter() - began
        shares.append(own / computed)
        n_hit, table, _ = cache.find(tokens)
        hit = runner.new_sequence()
        hit.table, hit.n_computed = table, n_hit
        again = runner.step([Feed(hit, tokens[n_hit:])], want_logits=True)
        assert result.logits is not None and again.logits is not None
        same = np.array_equal(result.logits[-1].view("u4"), again.logits[-1].view("u4"))
        if not same:
            raise RuntimeError("the logits behind a prefix hit are others than those of a cold one")
        runner.free(hit)
        runner.free(sequence)
    cache.clear()
    runner.blocks.cache = None
    yield Row(
        _PREFIX, name, "%", 100 * statistics.median(shares),
        note=f"goal 0.5 % of the time to compute them; logits behind a hit of {n_hit}: identical",
    )  # fmt: skip


class _Answers:
    """Counts what comes of some requests."""

    def __init__(self, n: int) -> None:
        self._open, self._lock = n, threading.Condition()
        self.begun = threading.Semaphore(0)

    def emit(self, event: Event) -> None:
        if isinstance(event, Piece):
            self.begun.release()
        if isinstance(event, Finished | Failed):
            with self._lock:
                self._open -= 1
                self._lock.notify()

    def wait(self, seconds: float) -> None:
        with self._lock:
            if not self._lock.wait_for(lambda: not self._open, seconds):
                raise RuntimeError(f"{self._open} requests did not end in {seconds:g} s")


def _request(seed: int, n_prompt: int, n_tokens: int) -> Request:
    draw = random.Random(seed)
    prompt = tuple(draw.randrange(1000, 40000) for _ in range(n_prompt))
    params = GenerateParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)
    return Request(prompt, params, salt=b"%d" % seed)


def _idle(name: str, service: NativeService, runner: Runner, n_rounds: int) -> Iterator[Row]:
    """The share of time in which no step runs natively while all streams decode, alone and while
    another Python thread computes."""
    for what, beside in (("", None), (_BUSY, _spin)):
        shares = []
        for i in range(n_rounds):
            answers = _Answers(STREAMS)
            with _native_time(runner) as spans, _thread(beside):
                for s in range(STREAMS):
                    service.submit(_request(1000 * i + s, 32, STREAM_TOKENS), answers.emit)
                answers.wait(60)
            decodes = spans[len(spans) // 4 : -2]  # all run, none has ended
            wall = decodes[-1][1] - decodes[0][0]
            shares.append(1 - sum(end - begin for begin, end in decodes) / wall)
        yield Row(
            _idle_test(what), name, "%",
            100 * statistics.median(shares), note="goal 3 %",
        )  # fmt: skip


@contextmanager
def _native_time(runner: Runner) -> Iterator[list[tuple[float, float]]]:
    """(begin, end) of each native call, from when it may begin: arrays are laid out before."""
    from localllm import native

    spans: list[tuple[float, float]] = []
    plain = native.call

    def timed(function: Any, *args: Any) -> None:
        began = time.perf_counter()
        try:
            plain(function, *args)
        finally:
            spans.append((began, time.perf_counter()))

    native.call = timed
    try:
        yield spans
    finally:
        native.call = plain


@contextmanager
def _thread(work: Callable[[threading.Event], None] | None) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,)) if work else None
    if thread:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread:
            thread.join()


def _spin(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def _cancelled(name: str, service: NativeService, n: int) -> Iterator[Row]:
    """Bar 4: seconds from `cancel` until the blocks are free, in each phase, beside other work."""
    for phase in PHASES:
        seconds = []
        for i in range(n):
            others = STREAMS if phase == "queue" else 1
            beside = _Answers(others)
            held = [service.submit(_request(i * 100 + s, 16, 4000), beside.emit)
                    for s in range(others)]  # fmt: skip
            for _ in range(others):
                beside.begun.acquire()
            own = _Answers(1)
            ticket = service.submit(_request(i + 9000, 3000 if phase == "prompt" else 64, 900),
                                    own.emit)  # fmt: skip
            if phase == "decode":
                own.begun.acquire()
            else:
                time.sleep(random.Random(i).uniform(0.005, 0.1))
            began = time.perf_counter()
            ticket.cancel()
            own.wait(30)  # told after its blocks are free
            seconds.append(time.perf_counter() - began)
            for each in held:
                each.cancel()
            beside.wait(30)
        if service.state().blocks_used:
            raise RuntimeError(f"{service.state().blocks_used} blocks leaked")
        yield Row(
            _cancel_test(phase, n), name, "ms",
            1e3 * max(seconds), note="bar 4: 100 ms for p99; no block leaked",
        )  # fmt: skip
