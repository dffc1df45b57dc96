"""When a request that found the queue full is worth sending again."""

from __future__ import annotations

from localllm.errors import QueueFullError

LEAST_S, MOST_S = 1.0, 60.0
_NEWEST_SHARE = 0.2


class QueueWait:
    """Not thread-safe: its service guards it."""

    def __init__(self) -> None:
        self._answer_s = 0.0  # from a seat to the end, newer answers count for more

    def add(self, seconds: float) -> None:
        """An answer took so long, without its time in the queue."""
        if not self._answer_s:
            self._answer_s = seconds
        self._answer_s += _NEWEST_SHARE * (seconds - self._answer_s)

    def refusal(self, n_waiting: int, n_at_once: int) -> QueueFullError:
        """Until those who wait now have their seats."""
        seconds = self._answer_s * n_waiting / max(1, n_at_once)
        return QueueFullError(
            f"{n_waiting} requests wait already",
            retry_after_s=min(max(LEAST_S, seconds), MOST_S),
        )
