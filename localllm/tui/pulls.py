"""Pulls that run on whatever screen is shown: a thread for each, watched by whoever cares.

Nothing here knows Textual.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from localllm.errors import CancelledError, LocalLLMError
from localllm.paths import Paths
from localllm.plain_text import duration_text, size_text
from localllm.store import catalog, download, sources
from localllm.store.catalog import Entry
from localllm.store.index import Store
from localllm.store.lockfile import Lockfile
from localllm.store.offer import RemoteFile
from localllm.store.pull import pull_offer, with_known
from localllm.store.transfer.patience import KEPT
from localllm.store.transfer.progress import Meter, Progress
from localllm.store.wish import wish_of

RUNNING, STOPPING, DONE, FAILED, CANCELLED = "running", "stopping", "done", "failed", "stopped"
#: How often watchers are told of progress; of an end at once.
MOST_TELLS_PER_S = 4.0
_GO_ON = "What has come was kept: pull it again to go on from there."
_STAGES = {"check": "checking", "damaged": "damaged: fetching it again",
           "download": "downloading", "unpack": "unpacking"}  # fmt: skip


@dataclass(frozen=True)
class FilePart:
    """One file of a model on its way."""

    name: str
    n_bytes: int
    size: int | None

    @property
    def share(self) -> float | None:
        return min(1.0, self.n_bytes / self.size) if self.size else None

    @property
    def is_whole(self) -> bool:
        return self.size is not None and self.n_bytes >= self.size


@dataclass(frozen=True)
class Pull:
    """A moment of a pull. Texts are foreign, and to be escaped."""

    name: str  # as it was asked for
    state: str = RUNNING  # or STOPPING, DONE, FAILED, CANCELLED
    stage: str = "asking what there is"
    n_bytes: int = 0  # of all files
    size: int | None = None
    bytes_per_s: float = 0.0
    eta_s: float | None = None
    files: tuple[FilePart, ...] = ()  # of a model that has several
    error: str = ""
    hint: str = ""
    model: str = ""  # its name in the store, once it is there

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)

    @property
    def share(self) -> float | None:
        return min(1.0, self.n_bytes / self.size) if self.size else None

    @property
    def figures(self) -> str:
        """`41%  120.0 MB of 300.0 MB  3.1 MB/s  1:02 left`, as far as they are known."""
        share = self.share
        of = "" if self.size is None else f" of {size_text(self.size)}"
        parts = (
            "" if share is None else f"{share:.0%}",
            f"{size_text(self.n_bytes)}{of}" if self.n_bytes or self.size else "",
            f"{size_text(int(self.bytes_per_s))}/s" if self.bytes_per_s else "",
            "" if self.eta_s is None else f"{duration_text(self.eta_s)} left",
        )
        return "  ".join(part for part in parts if part)

    @property
    def sentence(self) -> str:
        """What there is to say when it is over, else how far it is."""
        if self.state == DONE:
            return f"{self.model or self.name} is here"
        if self.state == FAILED:
            return f"{self.name}: {self.error}. {self.hint}".rstrip()
        if self.state == CANCELLED:
            return f"The pull of {self.name} was stopped. {self.hint}".rstrip()
        return f"{self.name}: {self.stage} {self.figures}".rstrip()


Tell = Callable[[Pull], None]


class Bring(Protocol):
    """Brings a model here: blocks, and calls tell with what it is at. tell may raise, which ends
    it. Returns the name in the store."""

    def __call__(self, pull: Pull, tell: Tell) -> str: ...


class Pulls:
    """All pulls of this program. `start`, `cancel` and `dismiss` do not block; watchers are called
    from the threads of the pulls."""

    def __init__(self, bring: Bring) -> None:
        self._bring = bring
        self._lock = threading.Lock()
        self._pulls: dict[str, Pull] = {}  # in the order of their start
        self._stops: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._watchers: list[Tell] = []

    def all(self) -> list[Pull]:
        with self._lock:
            return list(self._pulls.values())

    def watch(self, watcher: Tell) -> Callable[[], None]:
        """Has a function told of every change; returns what ends that."""
        with self._lock:
            self._watchers.append(watcher)

        def end() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._watchers.remove(watcher)

        return end

    def start(self, name: str) -> bool:
        """False if that name is being pulled already."""
        with self._lock:
            before = self._pulls.get(name)
            if before is not None and not before.is_over:
                return False
            self._pulls.pop(name, None)  # it goes to the end of the list
            self._pulls[name] = pull = Pull(name)
            stop = self._stops[name] = threading.Event()
            thread = threading.Thread(
                target=self._run, args=(pull, stop), name=f"pull {name}", daemon=True
            )
            self._threads[name] = thread
        self._tell(pull)
        thread.start()
        return True

    def cancel(self, name: str) -> None:
        """Ends a pull soon; what has come is kept."""
        with self._lock:
            pull = self._pulls.get(name)
            if pull is None or pull.is_over:
                return
            self._stops[name].set()
            pull = self._pulls[name] = replace(pull, state=STOPPING, stage="stopping")
        self._tell(pull)

    def dismiss(self, name: str) -> None:
        """Forgets a pull that is over."""
        with self._lock:
            if name in self._pulls and self._pulls[name].is_over:
                del self._pulls[name], self._stops[name], self._threads[name]

    def line(self) -> str:
        """One line for the live bar; empty where nothing is being pulled."""
        running = [pull for pull in self.all() if not pull.is_over]
        if not running:
            return ""
        first = running[0]
        share = "" if first.share is None else f" {first.share:.0%}"
        left = "" if first.eta_s is None else f" {duration_text(first.eta_s)} left"
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        return f"pulling {first.name}{share}{left}{more}"

    def close(self, wait_s: float = 2.0) -> None:
        """Ends all of them; what has come is kept."""
        for pull in self.all():
            self.cancel(pull.name)
        until = time.monotonic() + wait_s
        for thread in list(self._threads.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, pull: Pull, stop: threading.Event) -> None:
        told_at = 0.0
        latest = pull

        def tell(moment: Pull) -> None:
            nonlocal told_at, latest
            if stop.is_set():
                raise CancelledError(f"the pull of {pull.name} was stopped")
            now = time.monotonic()
            changed = moment.stage != latest.stage
            latest = moment
            if changed or now - told_at >= 1 / MOST_TELLS_PER_S:
                told_at = now
                self._keep(moment, stop)

        try:
            model = self._bring(pull, tell)
            last = replace(latest, state=DONE, stage="done", model=model, eta_s=None)
        except CancelledError:
            last = replace(latest, state=CANCELLED, stage="stopped", hint=_GO_ON)
        except LocalLLMError as e:
            hint = (e.hint or "").replace(KEPT, _GO_ON)
            last = replace(latest, state=FAILED, stage="failed", error=e.message, hint=hint)
        except Exception as e:  # a fault of ours must not leave a bar that never ends
            what = f"{type(e).__name__}: {e}"
            last = replace(latest, state=FAILED, stage="failed", error=what, hint=_GO_ON)
        with self._lock:
            self._pulls[pull.name] = last
        self._tell(last)

    def _keep(self, moment: Pull, stop: threading.Event) -> None:
        with self._lock:
            if stop.is_set():
                return  # "stopping" stays
            self._pulls[moment.name] = moment
        self._tell(moment)

    def _tell(self, pull: Pull) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            with contextlib.suppress(Exception):  # a screen that has gone
                watcher(pull)


class StoreBring:
    """Brings models into the store of this machine, as `localllm pull` does."""

    def __init__(self, places: Paths) -> None:
        self._places = places

    def __call__(self, pull: Pull, tell: Tell) -> str:
        tell(pull)
        store = Store(self._places.models)
        known = catalog.load(damaged=lambda e: None)
        wish = wish_of(pull.name, known, store)
        if isinstance(wish, Entry):
            return str(download.pull(wish, self._places, _of_parts(pull, tell)).ref)
        asked = sources.asked(wish, known)
        offer = sources.offer(wish, known, Lockfile())
        offer = with_known(offer, store.find(offer.ref))
        tell(replace(pull, size=offer.size))
        model = pull_offer(
            offer, asked or offer.ref, self._places, _of_files(pull, offer.files, tell)
        )
        return str(model.ref)


class FileSet:
    """The files of one model, which come one after another."""

    def __init__(self, files: Iterable[tuple[str, int | None]]) -> None:
        """files: names and sizes, as far as these are known."""
        self._parts = [FilePart(name, 0, size) for name, size in files]

    def at(self, progress: Progress) -> tuple[FilePart, ...]:
        """How far each of them is; none for a single one. One that was here before is told of
        only by the sum of bytes."""
        n_before = progress.all_bytes - progress.n_bytes
        for n, part in enumerate(self._parts[: progress.index - 1]):
            if part.size is not None and part.size <= n_before:
                self._parts[n] = replace(part, n_bytes=part.size)
                n_before -= part.size
        now = FilePart(progress.name, progress.n_bytes, progress.size)
        self._parts[progress.index - 1] = now
        return tuple(self._parts) if len(self._parts) > 1 else ()


def _of_files(pull: Pull, files: Sequence[RemoteFile], tell: Tell) -> Callable[[Progress], None]:
    of_set = FileSet((file.name, file.size) for file in files)

    def report(progress: Progress) -> None:
        tell(
            replace(
                pull,
                stage=progress.state,
                n_bytes=progress.all_bytes,
                size=progress.all_size,
                bytes_per_s=progress.bytes_per_s,
                eta_s=progress.eta_s,
                files=of_set.at(progress),
            )
        )

    return report


def _of_parts(pull: Pull, tell: Tell) -> Callable[[download.Progress], None]:
    meter: Any = Meter()
    stage = ""

    def report(progress: download.Progress) -> None:
        nonlocal meter, stage
        if progress.stage != stage:
            meter, stage = Meter(), progress.stage
        speed = meter.bytes_per_s(progress.n_bytes)
        left = progress.total_bytes - progress.n_bytes
        tell(
            replace(
                pull,
                stage=progress.state or _STAGES[progress.stage],
                n_bytes=progress.n_bytes,
                size=progress.total_bytes,
                bytes_per_s=speed if stage == "download" else 0.0,
                eta_s=left / speed if stage == "download" and speed > 0 else None,
            )
        )

    return report
