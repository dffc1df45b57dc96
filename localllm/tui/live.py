"""The figures that an answer and the machine are watched by: a moment of them, and the last many.

Nothing here knows Textual.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

    from localllm.tui.opening import AnySession

#: Moments that are kept: ten minutes of one each second.
MOST_SAMPLES = 600
MOST_ANSWERS = 200


@dataclass(frozen=True)
class Snapshot:
    """A moment. None, and a context_size or kv_bytes of 0: not known."""

    model: str = ""
    answering: bool = False
    tokens_per_s: float | None = None  # of the running answer, else of the last one
    first_token_s: float | None = None
    prompt_done: tuple[int, int] = (0, 0)  # tokens of the running prompt: computed, to be computed
    context_used: int = 0
    context_size: int = 0
    cached_tokens: int | None = None  # of the prompt, kept from before
    kv_bytes: int = 0  # reserved for a whole context
    process_bytes: int | None = None
    machine_load: float | None = None  # share of all CPUs
    memory_used: float | None = None  # share of the machine's memory
    pulls: str = ""  # one line on what is being pulled

    @property
    def context_share(self) -> float | None:
        return min(1.0, self.context_used / self.context_size) if self.context_size else None

    @property
    def kv_used_bytes(self) -> int:
        """Of the bytes that are reserved, those of the tokens that are kept."""
        return round(self.kv_bytes * (self.context_share or 0.0))


@dataclass(frozen=True)
class AnswerFigures:
    """One answer, when it had ended."""

    at: str  # the time of day
    model: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    first_token_s: float
    tokens_per_s: float | None
    reason: str  # why it ended


class Sampler:
    """Makes snapshots of a session and of the machine. Reads counters of the system alone: it does
    not block, and costs a tenth of a millisecond."""

    def __init__(self, process: psutil.Process | None = None) -> None:
        self._process = process
        self._is_first = True

    def take(
        self, session: AnySession | None, *, model: str = "", answering: bool = False,
        pulls: str = "",
    ) -> Snapshot:  # fmt: skip
        moment = self._machine(Snapshot(model=model, pulls=pulls))
        if session is None:
            return moment
        stats, info = session.stats, session.info
        asked = bool(stats.prompt_tokens)
        return replace(
            moment,
            answering=answering,
            tokens_per_s=speed(stats.generated_tokens, stats.decode_s),
            first_token_s=stats.first_token_s or None,
            prompt_done=session.progress_tokens if answering else (0, 0),
            context_used=_used(session, answering),
            context_size=info.n_ctx,
            cached_tokens=stats.cached_tokens if asked else None,
            kv_bytes=info.kv_bytes,
        )

    def _machine(self, moment: Snapshot) -> Snapshot:
        import psutil  # only now: the first screen is painted without it

        try:
            if self._process is None:
                self._process = psutil.Process()
            load = psutil.cpu_percent(None) / 100
            was_first, self._is_first = self._is_first, False
            return replace(
                moment,
                process_bytes=self._process.memory_info().rss,
                machine_load=None if was_first else load,  # there is nothing to compare with
                memory_used=psutil.virtual_memory().percent / 100,
            )
        except (psutil.Error, OSError):
            return moment


def speed(n_tokens: int, seconds: float) -> float | None:
    """Tokens a second; the first token comes out of the prompt's last step."""
    return (n_tokens - 1) / seconds if n_tokens > 1 and seconds > 0 else None


def _used(session: AnySession, answering: bool) -> int:
    """Tokens in the context; the engine tells of a running answer only when it is over."""
    stats = session.stats
    running = stats.cached_tokens + stats.computed_tokens + max(0, stats.generated_tokens - 1)
    return max(session.context_used, running) if answering else session.context_used


@dataclass(frozen=True)
class Summary:
    """Of the values of one figure over time."""

    least: float
    median: float
    most: float
    last: float


@dataclass(frozen=True)
class Figure:
    """A figure that is watched over time."""

    title: str
    unit: str
    of: Callable[[Snapshot], float | None]


#: What the screen of figures shows, in this order.
FIGURES = (
    Figure("Speed", "tok/s", lambda s: s.tokens_per_s if s.answering else None),
    Figure("First token", "s", lambda s: s.first_token_s),
    Figure("Context", "tokens", lambda s: s.context_used if s.context_size else None),
    Figure("Cached", "tokens", lambda s: s.cached_tokens),
    Figure("KV cache", "MB", lambda s: s.kv_used_bytes / 1e6 if s.kv_bytes else None),
    Figure("Process", "MB", lambda s: None if s.process_bytes is None else s.process_bytes / 1e6),
    Figure("Machine", "% CPU", lambda s: None if s.machine_load is None else s.machine_load * 100),
    Figure("Memory", "% used", lambda s: None if s.memory_used is None else s.memory_used * 100),
)


class History:
    """The last moments, one each second at most, and the last answers, the newest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, every_s: float = 1.0) -> None:
        self.samples: deque[Snapshot] = deque(maxlen=MOST_SAMPLES)
        self.answers: deque[AnswerFigures] = deque(maxlen=MOST_ANSWERS)
        self._clock, self._every_s = clock, every_s
        self._added_at = float("-inf")

    def add(self, moment: Snapshot) -> bool:
        """Keeps a moment, unless the last one is too near."""
        now = self._clock()
        if now - self._added_at < self._every_s:
            return False
        self._added_at = now
        self.samples.append(moment)
        return True

    def add_answer(self, session: AnySession, model: str, reason: str) -> None:
        """Call when an answer has ended, however it did."""
        stats = session.stats
        self.answers.appendleft(
            AnswerFigures(
                at=time.strftime("%H:%M:%S"),
                model=model,
                prompt_tokens=stats.prompt_tokens,
                cached_tokens=stats.cached_tokens,
                generated_tokens=stats.generated_tokens,
                first_token_s=stats.first_token_s,
                tokens_per_s=speed(stats.generated_tokens, stats.decode_s),
                reason=reason,
            )
        )

    def values(self, figure: Figure) -> list[float]:
        return [value for each in self.samples if (value := figure.of(each)) is not None]


def summary(values: Sequence[float] | Iterable[float]) -> Summary | None:
    """None where there are none."""
    kept = list(values)
    if not kept:
        return None
    return Summary(min(kept), statistics.median(kept), max(kept), kept[-1])
