"""One test on both engines in turn, A B A B, with looks at the roof between the runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.ours import Ours
from benchmarks.report import Row
from benchmarks.rival_process import RivalProcess
from benchmarks.roofs import Threads, Watch

RIVAL_SECONDS = 100.0  # for one row: filling a context of 8k tokens takes some rivals minutes
SETTLE_SECONDS = 0.03  # the other engine's threads spin for some milliseconds after their last job


@dataclass(frozen=True)
class RivalChoice:
    """Which rival to run, if any; what its build can do is filled in when it starts."""

    wanted: bool = True
    thorough: bool = True  # see `rival_process.Variants`
    row_seconds: float = RIVAL_SECONDS  # what the rival may take for a row
    features: str = ""


@dataclass(frozen=True)
class Test:
    """A timed call of `method` of `Ours` and `Rival`; n_tokens come out of (or go into) it.

    need: billions of bytes (roof READ) or operations (roof INT8) that it cannot do without. kind:
    tests of one kind run in one variant of the rival.
    """

    name: str
    method: str
    args: tuple[int, ...]
    n_tokens: int
    roof: str
    need: float
    kind: str


class Engines:
    """Both engines with one file. A rival that fails, or takes too long for its first run of a row,
    leaves a note in the rows, and no ratio."""

    def __init__(
        self,
        path: Path,
        threads: Threads,
        choice: RivalChoice,
        *,
        n_ctx_tokens: int,
        max_sequences: int,
        kv_type: str = "f16",
        on_features: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.threads, self.row_seconds = threads, choice.row_seconds
        self.ours = Ours(
            path,
            n_threads=threads.count,
            n_ctx_tokens=n_ctx_tokens,
            max_sequences=max_sequences,
            kv_type=kv_type,
        )
        self.rival: RivalProcess | None = None
        self.note = "" if choice.wanted else "no rival asked for"
        if choice.wanted:
            try:
                self.rival = RivalProcess(
                    path,
                    thorough=choice.thorough,
                    n_threads=threads.count,
                    n_ctx_tokens=n_ctx_tokens,
                    max_sequences=max_sequences,
                    kv_type=kv_type,
                )
                on_features(self.rival.features)
            except RuntimeError as e:
                self.note = str(e)

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.ours.close()
        if self.rival is not None:
            self.rival.close()

    def time_ours(self, method: str, args: tuple[int, ...]) -> float:
        time.sleep(SETTLE_SECONDS)
        seconds: float = getattr(self.ours, method)(*args)
        return seconds

    def time_rival(self, kind: str, method: str, args: tuple[int, ...]) -> tuple[float, str] | None:
        """Seconds and variant; None when the rival refuses this test or is gone, see `note`. One
        that takes longer than a row may take is ended: the tests after it are no shorter."""
        if self.rival is None:
            return None
        time.sleep(SETTLE_SECONDS)
        try:
            return self.rival.time(kind, method, args, self.row_seconds)
        except RuntimeError as e:
            self.note = str(e)
            if not self.rival.is_alive:
                self.rival.close()
                self.rival = None
            return None


def paired(ours: list[float], rivals: list[float]) -> dict[str, float | int | None]:
    """The ratio fields of a row from seconds of runs in turn; nothing where the rival has none. A
    rival that was cut has fewer runs than ours."""
    if not rivals:
        return {}
    ratios = [b / a for a, b in zip(ours, rivals, strict=False)]
    return {
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "n_pairs": len(ratios),
    }


class _Rivals:
    """The rival's runs of one row, in the time that a row may take."""

    def __init__(self, engines: Engines, test: Test, n_pairs: int) -> None:
        self._engines, self._test, self._n_pairs = engines, test, n_pairs
        self._end = time.monotonic() + engines.row_seconds
        self._longest = 0.0
        self.seconds: list[float] = []
        self.variant = self.note = ""
        self._goes_on = self._time() is not None  # not counted

    def _time(self) -> tuple[float, str] | None:
        begin = time.monotonic()
        test = self._test
        timed = self._engines.time_rival(test.kind, test.method, test.args)
        if self.seconds:  # the runs before it fill the context, and choose the variant
            self._longest = max(self._longest, time.monotonic() - begin)
        return timed

    def run(self) -> None:
        if not self._goes_on:
            return
        if self.seconds and time.monotonic() + self._longest > self._end:
            self.note = (
                f"cut after {len(self.seconds)} of {self._n_pairs} pairs: the rival may take "
                f"{self._engines.row_seconds:g} s for a row"
            )
            self._goes_on = False
            return
        timed = self._time()
        if timed is None:
            self._goes_on, self.seconds = False, []
            return
        self.seconds.append(timed[0])
        self.variant = timed[1]


def run(engines: Engines, subject: str, test: Test, n_pairs: int) -> Row:
    """A row in tokens a second; one run of each engine before is not counted."""
    mine: list[float] = []
    engines.time_ours(test.method, test.args)
    rivals = _Rivals(engines, test, n_pairs)
    watch = Watch(engines.threads, test.roof)
    watch.look()
    for pair in range(n_pairs):
        mine.append(engines.time_ours(test.method, test.args))
        rivals.run()
        if pair % 2 == 0:
            watch.look()
    seconds, theirs = statistics.median(mine), rivals.seconds
    return Row(
        test.name,
        subject,
        "tok/s",
        test.n_tokens / seconds,
        rival=test.n_tokens / statistics.median(theirs) if theirs else None,
        roof=watch.roof,
        roof_value=watch.value,
        share=test.need / seconds / watch.value,
        rival_variant=rivals.variant if theirs else "",
        note=rivals.note if theirs else engines.note,
        **paired(mine, theirs),  # type: ignore[arg-type]
    )
