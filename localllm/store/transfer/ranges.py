"""A few connections that fetch what is missing of a file, range by range in order; or one that
reads all of it, where a server knows no ranges."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from localllm.store.transfer.http import Fault, Transport
from localllm.store.transfer.look import Remote
from localllm.store.transfer.partial import LeaseLost, Partial, Recalled, Span
from localllm.store.transfer.patience import Patience
from localllm.store.transfer.settings import KIB, Settings

_KEPT_PARTS = 32  # the journal has at most so many lines on one chunk before it is complete
_LEAST_ANSWER = 64 * KIB  # a range that is cut shorter by the server is a fault


class Session:
    """Threads on one state of one file, from the first request to the last byte or to what only
    another look at the file can mend."""

    def __init__(
        self,
        transport: Transport,
        remote: Remote,
        partial: Partial,
        settings: Settings,
        name: str,
        *,
        ranged: bool,
        hashed: bool,
    ) -> None:
        self._transport, self._remote, self._partial = transport, remote, partial
        self._settings, self._name, self._ranged, self._hashed = settings, name, ranged, hashed
        self._stop = threading.Event()
        self._over = threading.Event()  # an error, or all threads have ended
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._active = settings.connections if ranged else 1
        self._allowed = self._running = self._active
        self._pause_until = 0.0
        self._waiting = ("", 0.0)
        self.ignored_range = False  # the server sent the whole file instead of a range

    @property
    def state(self) -> str:
        """What is waited for after a failure, empty while nothing is."""
        text, until = self._waiting
        left = until - time.monotonic()
        return f"retrying in {math.ceil(left)} s: {text}" if left > 0 else ""

    def run(self, tick: Callable[[], None]) -> None:
        """Until nothing is missing. `tick` is called in this thread all the while, and may raise.
        Raises `Fault` (look again), `DownloadError`, `OSError`, `LeaseLost`."""
        work = self._work if self._ranged else self._read_all
        threads = [
            threading.Thread(target=self._guard, args=(work,), name="transfer", daemon=True)
            for _ in range(self._active)
        ]
        try:
            for thread in threads:
                thread.start()
            keep_at = time.monotonic() + self._settings.keep_s
            while not self._over.wait(self._settings.poll_s):
                tick()
                if time.monotonic() >= keep_at:
                    self._partial.keep_begun(-(-self._partial.division.chunk_bytes // _KEPT_PARTS))
                    keep_at = time.monotonic() + self._settings.keep_s
        finally:
            self._stop.set()
            until = time.monotonic() + 0.5
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, until - time.monotonic()))
            # One that waits for its server ends by itself; what it had taken is free again.
            self._partial.recall()
            with contextlib.suppress(OSError, LeaseLost):  # what has led here is told, not this
                self._partial.keep_begun()
        if self._error is not None:
            raise self._error

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Recalled:
            return
        except Exception as e:
            with self._lock:
                if self._error is None and not self._stop.is_set():
                    self._error = e
            self._stop.set()
            self._over.set()
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self._over.set()

    def _work(self) -> None:
        settings = self._settings
        patience = Patience(settings, self._name, lambda: self._partial.received)
        while not self._stop.is_set():
            self._sleep(self._pause_until - time.monotonic())
            span = self._partial.take(settings.span_bytes, settings.connections)
            if span is None:
                return
            try:
                self._fetch(span)
            except Fault as fault:
                if fault.look:
                    raise
                wait = patience.delay(fault)
                self._waiting = (str(fault), time.monotonic() + wait)
                if fault.busy and self._leaves(wait):
                    return
                # The others may go on with the span meanwhile.
                self._partial.give_back(span)
                self._sleep(wait)
            finally:
                self._partial.give_back(span)

    def _leaves(self, wait: float) -> bool:
        """A server that has too much to do gets fewer connections, and rest on all of them."""
        with self._lock:
            self._pause_until = max(self._pause_until, time.monotonic() + wait)
            self._allowed = max(1, self._allowed - 1)
            if self._active <= self._allowed:
                return False
            self._active -= 1
            return True

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._stop.wait(seconds)

    def _fetch(self, span: Span) -> None:
        while span.offset < span.end and not self._stop.is_set():
            asked = span.end - span.offset
            with self._transport.get(self._remote.route, span.offset, span.end) as answer:
                if not answer.ranged:
                    self.ignored_range = True
                    raise Fault(
                        f"{answer.host} sent the whole file instead of a range",
                        look=True,
                        grave=True,
                    )
                self._remote.require_same(answer, self._partial.etags, hashed=self._hashed)
                for block in answer.blocks():
                    if self._stop.is_set():
                        return
                    span.feed(block)
                if answer.n_bytes is not None and answer.n_bytes < min(asked, _LEAST_ANSWER):
                    raise Fault(f"{answer.host} sent {answer.n_bytes} of {asked} bytes")

    def _read_all(self) -> None:
        remote, size = self._remote, self._partial.division.size
        sweep = self._partial.sweep()
        try:
            with self._transport.get(remote.route, 0, None) as answer:
                remote.require_same(answer, self._partial.etags, hashed=self._hashed)
                for block in answer.blocks():
                    if self._stop.is_set():
                        return
                    if sweep.offset + len(block) > size:
                        raise Fault(f"{answer.host} sent more than {size} bytes", grave=True)
                    sweep.feed(block)
                if sweep.offset < size:
                    raise Fault(f"{answer.host} ended after {sweep.offset} of {size} bytes")
        except Fault as fault:
            fault.look = True  # there may be ranges the next time
            raise
