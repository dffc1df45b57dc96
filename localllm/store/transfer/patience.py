"""How long to wait after a failure, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from localllm.errors import DownloadError
from localllm.store.transfer.http import Fault
from localllm.store.transfer.settings import KIB, Settings

_PROGRESS = 256 * KIB  # bytes between two failures that make the later one the first
_UNREACHABLE_TRIES = 4  # as long as not a byte has come
KEPT = "What has come was kept: the same command goes on from there."


class Patience:
    """Counts the failures of one worker between which nothing came."""

    def __init__(self, settings: Settings, name: str, received: Callable[[], int]) -> None:
        """received: bytes of the file that have come to any worker until now."""
        self._settings, self._name, self._received = settings, name, received
        self._n = 0
        self._mark = 0

    def delay(self, fault: Fault) -> float:
        """Seconds to wait before the next attempt. Raises `DownloadError` when it was one too
        many."""
        settings, received = self._settings, self._received()
        if received - self._mark >= min(_PROGRESS, settings.chunk_bytes or _PROGRESS):
            self._n = 0
        self._mark = received
        self._n += 1
        limit = settings.grave_tries if fault.grave else settings.tries
        if fault.unreachable and not received:
            limit = min(limit, _UNREACHABLE_TRIES)
        if self._n >= limit:
            raise DownloadError(
                f"cannot fetch {self._name}: {fault} (tried {self._n} times)",
                ("Check the network and the proxy. " if fault.unreachable else "") + KEPT,
            )
        if fault.after is not None:
            if fault.after > settings.longest_asked_s:
                at = time.strftime("%H:%M", time.localtime(time.time() + fault.after))
                raise DownloadError(
                    f"cannot fetch {self._name}: {fault}, and asks to wait for {fault.after:.0f} s",
                    f"Try again at {at}. {KEPT}",
                )
            return fault.after + random.uniform(0, settings.first_wait_s)
        wait = min(settings.longest_wait_s, settings.first_wait_s * 2.0 ** (self._n - 1))
        return wait * random.uniform(0.5, 1)
