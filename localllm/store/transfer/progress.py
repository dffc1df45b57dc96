"""How far a transfer is, for a bar on a screen or a line of JSON."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 7.0

DOWNLOADING = "downloading"
CHECKING = "checking"
COMPARING = "comparing with a second download"


@dataclass(frozen=True)
class Progress:
    """A moment of a transfer of one file or of a set of files."""

    name: str  # of the file, as the source calls it
    index: int  # of the file in the set, from 1
    n_files: int
    n_bytes: int  # of this file that are here
    size: int | None  # of this file
    all_bytes: int  # of all files of the set that are here
    all_size: int | None
    bytes_per_s: float  # over the last seconds, 0 where nothing comes
    eta_s: float | None  # until all files are here
    state: str  # DOWNLOADING, CHECKING, COMPARING, or a sentence on what is waited for


Report = Callable[[Progress], None]


class Meter:
    """The speed over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def bytes_per_s(self, received: int) -> float:
        """The speed, given the bytes that have come over the network until now."""
        now = time.monotonic()
        self._samples.append((now, received))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        began, before = self._samples[0]
        return (received - before) / (now - began) if now > began else 0.0
