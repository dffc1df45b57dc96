"""What `bench` runs: prompts and answers of made-up tokens, the engines in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PREFILL_TOKENS = (128, 512, 2048)
DECODE_DEPTHS = (0, 1024, 4096)
DECODE_TOKENS = 32  # in one timed run
#: The other engine's threads spin for some milliseconds after their last job.
SETTLE_S = 0.03


class Timed(Protocol):
    """The part of a session that is timed. Both methods raise `CancelledError` after `cancel`, and
    leave nothing in the context that a later run would find."""

    def time_prefill(self, n_tokens: int) -> float:
        """Seconds from an empty context to the first token after a prompt of n made-up tokens."""

    def time_decode(self, depth: int, n_tokens: int) -> Iterator[float]:
        """Fills an empty context with `depth` made-up tokens, then yields the seconds of n_tokens
        further greedy steps, again and again until the context is full. Depth 0 is one token: a
        step needs one to go on from. End tokens do not end it."""


@dataclass(frozen=True)
class Case:
    """kind "prefill": n_tokens of prompt; kind "decode": steps behind n_tokens of context."""

    kind: str
    n_tokens: int

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.n_tokens}"
        return f"decode at {self.n_tokens}"

    @property
    def n_timed(self) -> int:
        """Tokens of one timed run."""
        return self.n_tokens if self.kind == "prefill" else DECODE_TOKENS


@dataclass
class Result:
    """Seconds of each engine's runs; the i-th runs of the engines belong together."""

    test: Case
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def speeds(self, engine: str) -> list[float]:
        """Tokens per second of each run."""
        return [self.test.n_timed / s for s in self.seconds[engine]]

    def ratios(self, engine: str, other: str) -> list[float]:
        """How many times as fast `engine` was as `other`, pair by pair."""
        pairs = zip(self.seconds[engine], self.seconds[other], strict=True)
        return [b / a for a, b in pairs]


def cases_that_fit(n_ctx: int, repetitions: int) -> list[Case]:
    """The tests that a context of n_ctx tokens has room for."""
    prefill = [Case("prefill", n) for n in PREFILL_TOKENS if n < n_ctx]
    decode = [Case("decode", n) for n in DECODE_DEPTHS if context_needed(n, repetitions) <= n_ctx]
    return prefill + decode


def context_needed(depth: int, repetitions: int) -> int:
    """Tokens that a decode test at a depth takes, the run that is not counted included."""
    return max(depth, 1) + DECODE_TOKENS * (repetitions + 1) + 1


def run(
    engines: Mapping[str, Timed],
    test: Case,
    repetitions: int,
    budget_s: float,
    progress: Callable[[str], None],
) -> Result:
    """Runs a test on all engines in turn (A B A B). The first round warms up and is not counted,
    unless it alone takes longer than budget_s; after budget_s no further round begins."""
    result = Result(test, {name: [] for name in engines})
    with contextlib.ExitStack() as stack:
        rounds = [_timer(engine, test, stack) for engine in engines.values()]
        began = time.monotonic()
        for n in range(repetitions + 1):
            if n > 1 and time.monotonic() - began > budget_s:
                break
            seconds: list[float] = []
            for name, once in zip(engines, rounds, strict=True):
                progress(
                    f"{test.name}, {name}: " + (f"{n} of {repetitions}" if n else "warming up")
                )
                if len(engines) > 1:
                    time.sleep(SETTLE_S)
                seconds.append(once())
            slow = n == 0 and time.monotonic() - began > budget_s
            if n > 0 or slow:
                _add(result, engines, seconds)
            if slow:
                break
    return result


def _add(result: Result, engines: Mapping[str, Timed], seconds: Sequence[float]) -> None:
    for name, value in zip(engines, seconds, strict=True):
        result.seconds[name].append(value)


def _timer(engine: Timed, test: Case, stack: contextlib.ExitStack) -> Callable[[], float]:
    """A function that times one run; the stack ends what it leaves open."""
    if test.kind == "prefill":
        return lambda: engine.time_prefill(test.n_tokens)
    steps = engine.time_decode(test.n_tokens, test.n_timed)
    if isinstance(steps, Generator):
        stack.callback(steps.close)
    return lambda: next(steps)
