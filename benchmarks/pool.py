"""The thread pool in company: more threads than CPUs, two instances at once, CPU quotas.

Each figure is a decode, timed in processes of its own beside the one that it is a share of:
`python -m benchmarks.pool MODEL THREADS SECONDS` is such a process. It obeys lines on its standard
input: one to load the model, then one for each run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.ours import Ours, prompt
from benchmarks.report import Key, Row
from localllm.engine import machine
from localllm.engine.runner import Feed

RUN_SECONDS = 1.0
QUOTAS = (0.5, 1.0, 1.5, 2.0)
QUOTA_PERIOD_US = 100_000
CGROUPS = Path("/sys/fs/cgroup")
STEPS = 8  # decode steps between looks at the clock
SHARED_ROUNDS = 3  # times as many runs at once: the share of one run was 30 to 67 %


class Worker:
    """A process that decodes on its own thread pool. n_threads 0: its default."""

    def __init__(self, path: Path, n_threads: int, seconds: float, group: Path | None = None):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pool", str(path), str(n_threads), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )  # fmt: skip
        if group:
            (group / "cgroup.procs").write_text(str(self._process.pid))
        self.send()
        self.n_threads = int(self.receive())

    def send(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def receive(self) -> float:
        """Raises RuntimeError when the process has died."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the pool benchmark died")
        return float(json.loads(line))

    def run(self) -> float:
        """Tokens per second of one run."""
        self.send()
        return self.receive()

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def serve(path: Path, n_threads: int, seconds: float) -> None:
    """What a worker process does."""
    sys.stdin.readline()
    ours = Ours(path, n_threads=n_threads)
    print(ours.model.info.n_threads, flush=True)
    while sys.stdin.readline():
        sequence = ours.runner.new_sequence()
        ours.runner.prefill(Feed(sequence, prompt(32)))
        n_tokens, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            ours.runner.decode([Feed(sequence, [1])], STEPS)
            n_tokens += STEPS
            if n_tokens % 512 == 0:  # stay at small depth
                ours.runner.free(sequence)
                sequence = ours.runner.new_sequence()
                ours.runner.prefill(Feed(sequence, prompt(32)))
        print(n_tokens / elapsed, flush=True)
        ours.runner.free(sequence)
    ours.close()


def in_turn(workers: Sequence[Worker], n_rounds: int) -> list[float]:
    """The median tok/s of each, one running at a time."""
    runs = [[w.run() for w in workers] for _ in range(n_rounds)]
    return [statistics.median(column) for column in zip(*runs, strict=True)]


def at_once(workers: Sequence[Worker], n_rounds: int) -> list[float]:
    """The median tok/s of each, all running together."""
    runs = []
    for _ in range(n_rounds):
        for w in workers:
            w.send()
        runs.append([w.receive() for w in workers])
    return [statistics.median(column) for column in zip(*runs, strict=True)]


@contextmanager
def _workers(made: Iterator[Worker]) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        workers.extend(made)
        yield workers
    finally:
        for w in workers:
            w.close()


@contextmanager
def quota_group(quota: float) -> Iterator[Path | None]:
    """A new control group limited to `quota` CPUs; None where this process may not make one."""
    v2 = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if v2 else CGROUPS / "cpu") / f"localllm-bench-{os.getpid()}"
    limit = round(quota * QUOTA_PERIOD_US)
    try:
        group.mkdir()
        if v2:
            (group / "cpu.max").write_text(f"{limit} {QUOTA_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(limit))
    except OSError:
        if group.exists():
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def _threads_test(n_threads: int) -> str:
    return f"{n_threads} threads on {machine.facts().n_cpus} CPUs"


_TWO = "two instances at once, the slower"


def _quota_test(quota: float) -> str:
    return f"quota of {quota:g} CPUs, default"


def keys(name: str) -> list[Key]:
    n_cpus = machine.facts().n_cpus
    tests = [_threads_test(2 * n_cpus), _threads_test(4 * n_cpus), _TWO]
    tests += [_quota_test(quota) for quota in QUOTAS if quota <= n_cpus]
    return [(test, name) for test in tests]


def measure(
    name: str,
    path: Path,
    n_rounds: int = 5,
    seconds: float = RUN_SECONDS,
    missing: Collection[Key] | None = None,
) -> Iterator[Row]:
    """Rows for one model, of those that are missing if these are given: shares of what the best
    setting does in the same minute."""
    n_cpus = machine.facts().n_cpus
    wanted = {test for test, _ in keys(name) if missing is None or (test, name) in missing}
    counts = [n for n in (2 * n_cpus, 4 * n_cpus) if _threads_test(n) in wanted]
    if counts:
        yield from _many_threads(name, path, [n_cpus, *counts], n_rounds, seconds)
    if _TWO in wanted:
        with _workers(Worker(path, 0, seconds) for _ in range(2)) as workers:
            alone = in_turn(workers[:1], n_rounds)[0]
            both = at_once(workers, SHARED_ROUNDS * n_rounds)
            yield _share(_TWO, name, min(both), alone, "tok/s alone")
    for quota in QUOTAS:
        if _quota_test(quota) in wanted:
            yield from _quota_rows(name, path, quota, n_cpus, n_rounds, seconds)


def _many_threads(
    name: str, path: Path, counts: Sequence[int], n_rounds: int, seconds: float
) -> Iterator[Row]:
    """The share of the first count's speed that the others keep."""
    with _workers(Worker(path, n, seconds) for n in counts) as workers:
        speeds = in_turn(workers, n_rounds)
        for n, speed in zip(counts[1:], speeds[1:], strict=True):
            yield _share(_threads_test(n), name, speed, speeds[0], "tok/s, 1 a CPU")


def _quota_rows(
    name: str, path: Path, quota: float, n_cpus: int, n_rounds: int, seconds: float
) -> Iterator[Row]:
    with quota_group(quota) as group:
        if group is None:
            note = "no share: this process may not make a control group with a CPU limit"
            yield Row(_quota_test(quota), name, "tok/s", None, note=note)
            return
        counts = [0, *range(1, n_cpus + 1)]
        with _workers(Worker(path, n, seconds, group) for n in counts) as workers:
            speeds = in_turn(workers, n_rounds)
            row = _share(
                _quota_test(quota), name, speeds[0], max(speeds[1:]), "tok/s, best setting"
            )
            yield replace(row, note=f"the default is {workers[0].n_threads} threads")


def _share(test: str, name: str, ours: float, best: float, what: str) -> Row:
    return Row(test, name, "tok/s", ours, roof=what, roof_value=best, share=ours / best)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
