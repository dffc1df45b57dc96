"""Who downloads a file, when several processes want it.

The holder has a file `<key>.<token>.lease` in the folder of the partial files. A token is never
used twice, so whoever finds that its owner is dead can delete it without hitting anybody else. To
become the holder: find no living lease, write an own one, look again; whoever then sees another one
gives way and tries later. Of two at once, the one that looks last sees the other, so both never
stay.

The holder rewrites its lease every few seconds: a counter and its progress, which those who wait
show. An owner on the same machine is dead when its process is (by number and start time); any other
one when its lease has not changed for `stale_s`. A holder that slept that long finds its lease
deleted before it writes anything. There are no locks of the system and no links, so network disks
do."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localllm.store.durable import replacing
from localllm.store.transfer.progress import Progress
from localllm.store.transfer.settings import Settings

SUFFIX = ".lease"
_MAX_BYTES = 8192
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)  # counts while the machine sleeps


@dataclass(frozen=True)
class Holder:
    """What a lease says. `process` is empty where it could not be read (yet)."""

    process: str  # "process 12", or "process 12 on HOST"
    progress: Mapping[str, Any]  # fields of a Progress, none before the first


class Lease:
    """A lease in force. Its own thread shows that it lives."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path, self._settings = path, settings
        self._lock = threading.Lock()
        self._beat, self._lost = 0, False
        self._progress: Progress | None = None
        self._ended = threading.Event()
        self._shown_at = _now()
        with replacing(path) as file:
            file.write(self._text())
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)

    def start(self) -> None:
        """Begins to show that it lives."""
        self._thread.start()

    def note(self, progress: Progress) -> None:
        """What those who wait will see."""
        self._progress = progress

    def held(self) -> bool:
        """Whether it is still ours. Cheap while its last look is fresh; after a sleep it looks."""
        if not self._lost and _now() - self._shown_at > 1.5 * self._settings.beat_s:
            self._show()
        return not self._lost

    def confirm(self) -> bool:
        """Whether it is ours at this moment."""
        self._show()
        return not self._lost

    def release(self) -> None:
        """Lets the next one in."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _live(self) -> None:
        while not self._ended.wait(self._settings.beat_s) and not self._lost:
            self._show()

    def _show(self) -> None:
        with self._lock:
            self._beat += 1
            try:
                with self._path.open("r+b", buffering=0) as file:  # never makes it anew
                    file.write(self._text())
                    file.truncate()
                self._shown_at = _now()
            except FileNotFoundError:
                self._lost = True
            except OSError:
                # A full or failing disk: hold on for as long as the others would wait.
                if _now() - self._shown_at > 0.8 * self._settings.stale_s:
                    self._lost = True

    def _text(self) -> bytes:
        document = {
            "host": socket.gethostname(),
            "machine": machine(),
            "pid": os.getpid(),
            "started": started(os.getpid()),
            "beat": self._beat,
            "progress": asdict(self._progress) if self._progress else {},
        }
        return json.dumps(document).encode()


def acquire(folder: Path, key: str, settings: Settings, on_wait: Callable[[Holder], None]) -> Lease:
    """The lease of a file, as soon as nobody else holds it. `on_wait` is called over and over until
    then, and may raise. Raises `OSError`."""
    watch = _Watch(folder, key, settings)
    n_gave_way = 0
    while True:
        if rivals := watch.living():
            on_wait(rivals[0])
            time.sleep(settings.poll_s * random.uniform(0.7, 1.3))
            continue
        lease = Lease(folder / f"{key}.{secrets.token_hex(8)}{SUFFIX}", settings)
        try:
            if watch.living(but=lease._path):
                lease.release()
                # The more there are, the longer it takes until one is alone for a moment.
                n_gave_way = min(n_gave_way + 1, 5)
                time.sleep(settings.poll_s * random.uniform(0, 2**n_gave_way))
                continue
            lease.start()
            if watch.took_over:
                # The one before may only have been slow: now it sees that it has lost.
                time.sleep(2 * settings.beat_s)
        except BaseException:
            lease.release()
            raise
        return lease


def is_held(folder: Path, key: str, settings: Settings | None = None) -> bool:
    """Whether a process that may be alive fetches this file."""
    return bool(_Watch(folder, key, settings or Settings()).living())


class _Watch:
    """The leases of one file, and since when each of them looks as it does."""

    def __init__(self, folder: Path, key: str, settings: Settings) -> None:
        self._folder, self._key, self._settings = folder, key, settings
        self._seen: dict[str, tuple[bytes, float]] = {}
        self.took_over = False  # from an owner that may be alive

    def living(self, but: Path | None = None) -> list[Holder]:
        """Leases of others. Those of dead owners are deleted."""
        found = []
        for path in sorted(self._folder.glob(f"{self._key}.*{SUFFIX}")):
            if path == but:
                continue
            try:
                with path.open("rb") as file:
                    text = file.read(_MAX_BYTES)
            except FileNotFoundError:
                continue
            document = _parse(text)
            before = self._seen.get(path.name)
            if before is None or before[0] != text:
                self._seen[path.name] = before = (text, time.monotonic())
            stale = time.monotonic() - before[1] > self._settings.stale_s
            if stale or _is_dead(document):
                self.took_over |= not _is_dead(document)
                with contextlib.suppress(OSError):  # a system may refuse while it is open
                    path.unlink()
                    continue
            found.append(_holder(document))
        return found


def _parse(text: bytes) -> Mapping[str, Any]:
    """An empty mapping for a lease that is being written."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _holder(document: Mapping[str, Any]) -> Holder:
    pid, host = document.get("pid"), document.get("host")
    progress = document.get("progress")
    where = "" if host == socket.gethostname() else f" on {str(host)[:64]}"
    return Holder(
        f"process {pid}{where}" if isinstance(pid, int) else "another process",
        progress if isinstance(progress, dict) else {},
    )


def _is_dead(document: Mapping[str, Any]) -> bool:
    """Whether the owner's process is known to be gone: only its own machine can tell."""
    pid, began = document.get("pid"), document.get("started")
    if document.get("machine") != machine() or type(pid) is not int:
        return False
    return started(pid) != began


def started(pid: int) -> str | None:
    """When a process started, as a text to compare; None if there is none (or only its remains)."""
    try:
        # Linux, in ticks since the boot: steps of the clock do not change it.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        pass
    import psutil  # only now: it costs 20 ms

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.0f}"
    except (psutil.Error, ValueError, OverflowError):
        return None


def machine() -> str:
    """What two processes share that can see each other: host, boot, space of process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        import psutil

        boot, space = f"{psutil.boot_time():.0f}", ""
    return f"{socket.gethostname()} {boot} {space}".strip()


def _now() -> float:
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()
