"""What a pull is about to bring, and how far it is."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict

from localllm.cli import output
from localllm.cli.pull_line import line
from localllm.cli.pull_outlook import Outlook
from localllm.store.offer import Offer
from localllm.store.transfer.progress import Progress

_INTERVAL_S = 0.5  # between JSON lines


class JsonProgress:
    """A JSON line for the offer, when a state begins and ends, and twice a second between."""

    def __init__(self, offer: Offer) -> None:
        self._offer, self._state, self._written_at = offer, "", 0.0

    def begin(self, free_bytes: int, outlook: Outlook) -> None:
        offer = self._offer
        self._write(
            {
                "stage": "offer",
                "source": offer.source,
                "repository": offer.repository,
                "revision": offer.revision,
                "files": [
                    {"name": f.name, "size": f.size, "sha256": f.sha256} for f in offer.files
                ],
                "size": offer.size,
                "quantization": offer.quantization,
                "licence": offer.licence,
                "in_place": [str(path) for path in offer.in_place],
                "free_bytes": free_bytes,
                "memory": outlook.memory,
                "notes": [*offer.notes, *outlook.notes],
            }
        )

    def report(self, progress: Progress) -> None:
        now = time.monotonic()
        ends = progress.n_bytes == progress.size
        if not (progress.state != self._state or ends or now - self._written_at >= _INTERVAL_S):
            return
        self._state, self._written_at = progress.state, now
        document = asdict(progress)
        self._write(
            {
                "stage": document.pop("state"),
                "bytes": document.pop("all_bytes"),
                "total_bytes": document.pop("all_size"),
                **document,
            }
        )

    def end(self) -> None:
        """Nothing is left on the screen."""

    def _write(self, document: dict[str, object]) -> None:
        output.emit(json.dumps({"model": str(self._offer.ref), **document}) + "\n")


class TextProgress:
    """What is offered in some lines; then one with a bar, speed and remaining time on a terminal,
    else a line for each tenth."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._line = output.ProgressLine()
        self._tenth = 0
        self._state = ""
        self._silent = contextlib.ExitStack()  # until the first report

    def begin(self, free_bytes: int, outlook: Outlook) -> None:
        offer = self._offer
        size = output.size_text(offer.size) if offer.size is not None else "unknown size"
        revision = offer.revision.removeprefix("sha256:").strip('"')[:12]
        revision = f" at {revision}" if revision else ""
        output.say(output.escape_line(f"{offer.ref}: {offer.repository}{revision}"))
        n = len(offer.files)
        what = offer.files[0].name if n == 1 else f"{n} files, the first is {offer.files[0].name}"
        output.say(output.escape_line(f"  {what}, {size}, {_facts(offer)}"))
        if offer.in_place:
            output.say(output.escape_line(f"  It is here already: {offer.in_place[0]}"))
        elif offer.size is not None:
            output.say(output.escape_line(f"  {room(offer.size, free_bytes, outlook.memory)}"))
        for note in (*offer.notes, *outlook.notes):
            output.note(note)
        self._silent.enter_context(output.waiting(f"{offer.ref}: waiting for {_host(offer)}"))

    def report(self, progress: Progress) -> None:
        self._silent.close()
        share = _share(progress)
        if self._line.enabled:
            several = progress.n_files > 1
            file = f"file {progress.index} of {progress.n_files}" if several else ""
            text = line(progress.state, progress.all_bytes, progress.all_size,
                        progress.bytes_per_s, progress.eta_s, file)  # fmt: skip
            self._line.draw(text)
            return
        if progress.state != self._state:
            self._state = progress.state
            output.say(output.escape_line(f"{self._offer.ref}: {progress.state}"))
        if share is not None and int(share * 10) > self._tenth:
            self._tenth = int(share * 10)
            output.say(f"{self._offer.ref}: {self._tenth * 10} %")

    def end(self) -> None:
        self._silent.close()
        self._line.clear()


def _host(offer: Offer) -> str:
    """Who has the files, as far as the offer says."""
    if offer.source == "hub":
        return "the Hub"
    return offer.repository.partition("://")[2].partition("/")[0] or offer.repository


def _facts(offer: Offer) -> str:
    facts = [offer.quantization, f"licence: {offer.licence[:80] or 'not stated'}"]
    if offer.n_params:
        facts.insert(0, f"{output.count_text(offer.n_params)} parameters")
    return ", ".join(fact for fact in facts if fact)


def room(size: int, free_bytes: int, memory: str) -> str:
    """Whether the disk has room for a model of so many bytes, and what is said of the memory."""
    disk = f"{output.size_text(free_bytes)} are free on the disk"
    if free_bytes < size:
        disk = f"only {disk}, the whole model takes more"
    return f"{disk}; {memory}"


def _share(progress: Progress) -> float | None:
    return progress.all_bytes / progress.all_size if progress.all_size else None
