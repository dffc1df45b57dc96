"""r(n) = t(n) / t(1): what a step with n tokens costs beside a step with one.

Once as n tokens of one sequence, each with logits (the check of a draft), once as n sequences with
a token each (a batch). Flat r(n) is what makes speculation and batching pay.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.pairs import Engines, RivalChoice, paired
from benchmarks.report import Key, Row
from benchmarks.roofs import Threads

DEPTH = 32
FORMS = ("one sequence", "sequences")


def _args(form: str, n: int) -> tuple[int, ...]:
    return (n, DEPTH, 1) if form == FORMS[0] else (1, DEPTH, n)


def _kind(form: str, n: int) -> str:
    """The rival's variant is chosen once for each of these."""
    size = "1" if n == 1 else "2 to 4" if n <= 4 else "5 to 8" if n <= 8 else "9 and more"
    return f"step, {form}, {size}"


def keys(name: str, form: str, counts: Sequence[int]) -> list[Key]:
    return [(_test(n, form), name) for n in sorted({1, *counts})]


def _test(n: int, form: str) -> str:
    return f"r({n}), {form}"


def measure(
    name: str,
    path: Path,
    threads: Threads,
    counts: Sequence[int],
    n_rounds: int,
    choice: RivalChoice,
    on_features: Callable[[str], None] = lambda text: None,
    forms: Sequence[str] = FORMS,
) -> Iterator[Row]:
    """Yields a row per form and count: ours and the rival's r(n), and the paired ratio of the
    times of the steps. In a round each count is run once: r(n) compares runs of one moment."""
    counts = sorted({1, *counts})
    most = max(counts)
    with Engines(
        path, threads, choice, n_ctx_tokens=most * (DEPTH + 96) + 512, max_sequences=most,
        on_features=on_features,
    ) as engines:  # fmt: skip
        for form in forms:
            mine: dict[int, list[float]] = {n: [] for n in counts}
            theirs: dict[int, list[float]] = {n: [] for n in counts}
            variants: dict[int, str] = {}
            for _ in range(n_rounds + 1):  # the first is not counted
                for n in counts:
                    mine[n].append(engines.time_ours("time_step", _args(form, n)))
                    timed = engines.time_rival(_kind(form, n), "time_step", _args(form, n))
                    if timed:
                        theirs[n].append(timed[0])
                        variants[n] = timed[1]
            yield from rows(name, form, mine, theirs, variants, engines.note)


def rows(
    name: str,
    form: str,
    mine: dict[int, list[float]],
    theirs: dict[int, list[float]],
    variants: dict[int, str],
    note: str,
) -> Iterator[Row]:
    """The rows of one form from seconds by count, whose first round is left out. A rival that did
    not run every round of a count has no figure there."""
    n_rounds = len(mine[1])
    for n in mine:
        whole = len(theirs[n]) == len(theirs[1]) == n_rounds
        yield Row(
            _test(n, form),
            name,
            "t(n)/t(1)",
            growth(mine[n][1:], mine[1][1:]),
            rival=growth(theirs[n][1:], theirs[1][1:]) if whole else None,
            rival_variant=variants[n] if whole else "",
            note="" if whole else note,
            **paired(mine[n][1:], theirs[n][1:] if whole else []),  # type: ignore[arg-type]
        )


def growth(of_n: Sequence[float], of_1: Sequence[float]) -> float:
    """The median over the rounds of t(n) / t(1)."""
    return statistics.median(n / one for n, one in zip(of_n, of_1, strict=True))
