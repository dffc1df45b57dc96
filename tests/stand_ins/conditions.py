"""Waiting for what another thread or program does. Longer than any machine needs: a test that fails
for that reason says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60.0


def wait(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
    """Waits until it is so; fails if it does not come to that."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"it did not come to that within {seconds} s"
        time.sleep(0.005)


def wait_for_pages(home: Path, n_tokens: int) -> None:
    """Waits until what was computed of so many tokens, the last of which was only sampled, is on
    the disk of a home that holds nothing else."""
    n_pages = (n_tokens + 30) // 32
    kept = home / "cache" / "kv"
    wait(lambda: sum(len(path.name) == 64 for path in kept.rglob("*")) >= n_pages)
