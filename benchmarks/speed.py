"""Prefill and decode of whole models, this engine and the rival in turn: A B A B."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ops import Threads
from benchmarks.ours import Ours, prompt
from benchmarks.report import Row
from benchmarks.rival import RivalProcess
from localllm.store.work import Work, work_of

SETTLE_SECONDS = 0.03  # the other engine's threads spin for some milliseconds after their last job


@dataclass(frozen=True)
class Test:
    """A timed run: n_tokens come out of (or go into) one call of method with args."""

    name: str
    method: str  # of `Ours` and `Rival`
    args: tuple[object, ...]
    n_tokens: int


def tests(n_prefill: int, n_decode: int, batches: Sequence[int]) -> list[Test]:
    found = [Test(f"prefill {n_prefill}", "time_prefill", (prompt(n_prefill),), n_prefill)]
    for n in batches:
        name = "decode" if n == 1 else f"decode, batch of {n}"
        found.append(Test(name, "time_decode", (n_decode, 32, n), n_decode * n))
    return found


def _pairs(
    ours: Ours, rival: RivalProcess, test: Test, n_pairs: int
) -> tuple[list[float], list[float]]:
    """Seconds of each engine, run in turn; one run of each before is not counted."""
    mine: Callable[..., float] = getattr(ours, test.method)
    times: tuple[list[float], list[float]] = ([], [])
    mine(*test.args)
    rival.time(test.method, *test.args)
    for _ in range(n_pairs):
        time.sleep(SETTLE_SECONDS)
        times[0].append(mine(*test.args))
        time.sleep(SETTLE_SECONDS)
        times[1].append(rival.time(test.method, *test.args))
    return times


def measure(
    name: str,
    path: Path,
    threads: Threads,
    wanted: Sequence[Test],
    n_pairs: int,
    on_features: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Yields a row per test. Raises RuntimeError when the rival cannot run the file."""
    work = work_of(path)
    most = max([16, *(int(str(t.args[2])) for t in wanted if t.method == "time_decode")])
    ours = Ours(path, n_threads=threads.count, max_sequences=most)
    try:
        rival = RivalProcess(path, n_threads=threads.count, max_sequences=most)
        on_features(rival.features)
        try:
            for test in wanted:
                bandwidth, rate = threads.read_gb_per_s(), threads.int8_gop_per_s()
                mine, theirs = _pairs(ours, rival, test, n_pairs)
                bandwidth = max(bandwidth, threads.read_gb_per_s())
                rate = max(rate, threads.int8_gop_per_s())
                yield _row(name, test, work, mine, theirs, bandwidth, rate)
        finally:
            rival.close()
    finally:
        ours.close()


def _row(
    name: str,
    test: Test,
    work: Work,
    mine: list[float],
    theirs: list[float],
    bandwidth: float,
    rate: float,
) -> Row:
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    seconds = statistics.median(mine)
    if test.method == "time_prefill":
        roof, roof_value = "int8 Gop/s", rate
        reached = (test.n_tokens * work.layer_ops + work.head_ops) / 1e9 / seconds
    else:
        n_steps = int(str(test.args[0]))
        roof, roof_value = "read GB/s", bandwidth
        reached = n_steps * work.step_bytes / 1e9 / seconds
    return Row(
        test.name, name, "tok/s", test.n_tokens / seconds,
        test.n_tokens / statistics.median(theirs), statistics.median(ratios), min(ratios),
        max(ratios), len(ratios), roof, roof_value, reached / roof_value,
    )  # fmt: skip
