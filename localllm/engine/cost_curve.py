"""What a step of n tokens costs here, and how many tokens of prompts a step may take beside those
that decode."""

from __future__ import annotations

import contextlib
import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from localllm.engine.runner import Feed, Runner

#: Answers may come this many times slower, on average, while long prompts are computed beside. The
#: slowest ones come a little slower yet: their goal is 1.5.
SLOWER = 1.45
#: A step may take this much longer at once, which nobody sees: see `generate.RUN_SECONDS`.
PAUSE_SECONDS = 0.03
#: However costly, a step takes at least this many tokens of a prompt: prompts go on.
LEAST_BESIDE = 8
#: Short prompts are computed in steps whose tokens cost up to this many times the least, as far as
#: that is known: up to `FURTHER` times the largest step that was measured. Where that was less than
#: `ENOUGH`, at least `LEAST_SHORT` tokens of them are.
NEAR_LEAST, FURTHER, LEAST_SHORT = 1.15, 2, 32
#: Such a step may take so long that who decodes beside still gets eight tokens a second, if its
#: tokens cost up to this many times the least.
SHORT_SECONDS, STILL_NEAR = 0.125, 1.25
#: In steps of up to so many seconds short prompts get this many times what those take who decode:
#: if they got less than they bring, they would wait in line while few decode.
SHARE_SECONDS, PROMPT_SHARE = 0.5, 4
#: A measurement takes about this long at the most.
MEASURE_SECONDS = 0.8
#: It is to reach steps of `ENOUGH` tokens, whose tokens cost about the least, or else of fewer.
#: About `FLAT` tokens cost what one costs; more cost as much more as they are more.
ENOUGH, FLAT = 64, 8
#: A kept curve is in doubt if steps that it says take up to `CHECK_SECONDS` take less than
#: `QUICKER` times that now.
CHECK_SECONDS, QUICKER = 0.1, 0.7
#: Deep tokens are taken to cost at most this many times what a curve says.
MOST_DEARER = 8.0
_FORMAT = 2


@dataclass(frozen=True)
class CostCurve:
    """seconds[i] is what a step of sizes[i] tokens takes; both rise."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def cost(self, n_tokens: int) -> float:
        """Seconds of a step, on the straight line between the sizes measured."""
        i = min(max(1, bisect_left(self.sizes, n_tokens)), len(self.sizes) - 1)
        if i < 1:
            return self.seconds[0] * n_tokens / self.sizes[0]
        (x0, x1), (y0, y1) = self.sizes[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        return max(self.seconds[0], y0 + (y1 - y0) * (n_tokens - x0) / (x1 - x0))

    def budget(self, n_decoding: int, most: int, dearer: float = 1.0) -> int:
        """Tokens of a step in which n_decoding sequences decode, at most `most`: as many as cost
        `SLOWER` times what these cost alone, or `PAUSE_SECONDS` more. If none does: as many as cost
        the least each. dearer: so many times as much as here do tokens of the prompts cost that
        come now, behind many others."""
        if not n_decoding:
            sizes = [most, *(n for n in self.sizes if n < most)]
            return min(sizes, key=lambda n: (self.cost(n) / n, -n))
        alone = self.cost(n_decoding)
        limit = alone + max((SLOWER - 1) * alone, PAUSE_SECONDS) / dearer
        return min(most, max(self._within(limit, most), n_decoding + LEAST_BESIDE))

    def short_budget(self, n_decoding: int, most: int) -> int:
        """Tokens of a step with short prompts beside n_decoding sequences, at most `most`: so many
        of prompts that they cost about the least each, or more, up to `PROMPT_SHARE`; or as many as
        take `SHORT_SECONDS`, if that is more and they cost little more."""
        known = min(most, FURTHER * self.sizes[-1])
        each = {n: self.cost(n) / n for n in _doubled(known)}
        least = min(each.values())
        few = min(n for n in each if each[n] <= NEAR_LEAST * least)
        many = max(n for n in each if each[n] <= STILL_NEAR * least)
        share = min(PROMPT_SHARE * n_decoding, self._within(SHARE_SECONDS, most) - n_decoding)
        beside = max(few, share, LEAST_SHORT if self.sizes[-1] < ENOUGH else 0)
        return min(most, max(n_decoding + beside, self._within(SHORT_SECONDS, many)))

    def _within(self, seconds: float, most: int) -> int:
        """The most tokens of a step, up to `most`, that take so long; 0: not even one."""
        return bisect_right(range(1, most + 1), seconds, key=self.cost)


def measure(runner: Runner, max_seconds: float = MEASURE_SECONDS) -> CostCurve:
    """Times steps in an empty pool until the time is up: of 1, 2, 4 and so on tokens, the quicker
    of two each. Where that would end too early, once each, or of fewer sizes."""
    one = _step_seconds(runner, 1)  # the first one touches memory
    ends, most = time.perf_counter() + max_seconds, runner.max_batch_tokens
    if one < max_seconds:
        one = min(one, _step_seconds(runner, 1))
    seconds, last = {1: one}, 1
    sizes, n_times = _ladder(one, ends - time.perf_counter(), most)
    for n in sizes:
        likely = seconds[last] * min(n / last, max(1.0, n / FLAT) / max(1.0, last / FLAT))
        if time.perf_counter() + n_times * likely > ends:
            break
        seconds[n] = min(_step_seconds(runner, n) for _ in range(n_times))
        last = n
    return _least(seconds)


def _ladder(one_s: float, left_s: float, most: int) -> tuple[list[int], int]:
    """Sizes of steps behind 1 to be timed in left_s seconds, and how many times each, where a step
    of one token takes one_s: all powers of two if these reach `ENOUGH`, else every second one and
    so on up to there, else up to fewer."""
    tops = [n for n in reversed(_doubled(most)) if n > 1]
    ways = [(top, 2, 2) for top in tops if top >= min(ENOUGH, tops[0])]
    ways += [(top, factor, 1) for top in tops if top <= ENOUGH for factor in (2, 4, 8, top)]
    for top, factor, n_times in ways:
        sizes = [n for n in (top // factor**i for i in range(top.bit_length())) if n > 1][::-1]
        if n_times * one_s * sum(max(1.0, n / FLAT) for n in sizes) <= left_s:
            return sizes, n_times
    return [], 1


def _doubled(most: int) -> list[int]:
    """1, 2, 4 and so on, up to `most`."""
    return [1 << i for i in range(most.bit_length())]


def _least(seconds: dict[int, float]) -> CostCurve:
    """The curve of some measurements. What disturbs only adds: no step is slower than a larger one
    was."""
    sizes = sorted(seconds)
    return CostCurve(
        tuple(sizes), tuple(min(seconds[n] for n in sizes[i:]) for i in range(len(sizes)))
    )


def _step_seconds(runner: Runner, n_tokens: int) -> float:
    sequence = runner.new_sequence()
    try:
        began = time.perf_counter()
        runner.step([Feed(sequence, [0] * n_tokens)], check=False)
        return time.perf_counter() - began
    finally:
        runner.free(sequence)


def kept(path: Path) -> CostCurve | None:
    """A curve from a file, None if there is no good one."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        curve = CostCurve(
            tuple(int(n) for n in raw["sizes"]), tuple(float(s) for s in raw["seconds"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    good = len(curve.sizes) == len(curve.seconds) > 0 and curve.sizes[0] == 1
    rising = _rises(curve.sizes, strictly=True) and _rises(curve.seconds, strictly=False)
    return curve if good and rising and 0 < curve.seconds[0] < 3600 else None


def _rises(values: Sequence[float], *, strictly: bool) -> bool:
    return all(
        values[i - 1] < values[i] or (not strictly and values[i - 1] == values[i])
        for i in range(1, len(values))
    )


def was_disturbed(curve: CostCurve, runner: Runner) -> bool:
    """Whether steps are much quicker now than a kept curve says: the machine was busy then."""
    sizes = [n for n in curve.sizes if n <= runner.max_batch_tokens]
    brief = [n for n in sizes if curve.cost(n) <= CHECK_SECONDS] or sizes[:1]
    return any(
        min(_step_seconds(runner, n) for _ in range(2)) < QUICKER * curve.cost(n)
        for n in {brief[0], brief[-1]}
    )


def measured(runner: Runner, folder: Path, about: Sequence[str]) -> CostCurve:
    """The curve of a model on this machine, measured once, and again if the machine was busy then:
    `about` names all that it depends on."""
    what = "\n".join([str(_FORMAT), *about, str(runner.max_batch_tokens)])
    path = folder / f"{blake2b(what.encode(), digest_size=16).hexdigest()}.json"
    curve = kept(path)
    if curve is None or was_disturbed(curve, runner):
        new = measure(runner)
        old = {} if curve is None else dict(zip(curve.sizes, curve.seconds, strict=True))
        both = dict(zip(new.sizes, new.seconds, strict=True))
        curve = _least(old | {n: min(s, old.get(n, s)) for n, s in both.items()})
        with contextlib.suppress(OSError):  # then it is measured again next time
            folder.mkdir(parents=True, exist_ok=True)
            own = path.with_suffix(f".{time.time_ns()}.part")
            own.write_text(json.dumps({"sizes": curve.sizes, "seconds": curve.seconds}))
            own.replace(path)
    return curve
