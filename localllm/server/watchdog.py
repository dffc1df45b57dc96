"""Whether the loaded models get on with their work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from localllm.engine.request import ServiceState

STALLED_S = 1.0
"""A model with work that has not moved for so long is stuck. Long steps move all the while."""
_LOOK_S = 0.5

log = logging.getLogger("localllm.server")


def stuck(states: Mapping[str, ServiceState], now: float | None = None) -> dict[str, float]:
    """The models that are stuck, and for how many seconds. now: `time.monotonic()`."""
    now = time.monotonic() if now is None else now
    seconds = {name: state.stalled_s(now) for name, state in states.items()}
    return {name: each for name, each in seconds.items() if each > STALLED_S}


async def watch(
    states: Callable[[], Mapping[str, ServiceState]],
    note: Callable[[Mapping[str, ServiceState]], None],
) -> None:
    """Writes into the log when a model gets stuck, and when it goes on. Never returns. note: is
    given the states each time."""
    known: set[str] = set()
    while True:
        seen = states()
        note(seen)
        found = stuck(seen)
        for name in found.keys() - known:
            log.error("%s makes no progress, though it has work: /health says so", name)
        for name in known - found.keys():
            log.warning("%s goes on", name)
        known = set(found)
        await asyncio.sleep(_LOOK_S)
