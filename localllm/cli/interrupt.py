"""Ctrl-C for work that sits in native code.

Python runs its own signal handlers only between bytecodes of the main thread, and a prefill may
hold that thread in C for seconds. The wakeup descriptor has no such limit: the interpreter's C
handler writes to it at once, and a thread here reads it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

EXIT_CODE = 130


class Interrupts:
    """While the block runs, the first Ctrl-C calls `first`, the second one ends the process, or
    calls it again where `ends` is False.

    `first` runs on another thread and may be exchanged at any time. Where Ctrl-C is ignored (a
    background job) it stays ignored.
    """

    def __init__(self, first: Callable[[], None], *, ends: bool = True) -> None:
        self.first, self.ends = first, ends
        self.seen = False
        self._active = False

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            return self
        self._active = True
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._old_handler = signal.signal(signal.SIGINT, _ignore)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._old_handler)
            signal.set_wakeup_fd(self._old_fd)
            self._writer.close()  # ends the thread

    def _watch(self) -> None:
        with self._reader:
            while byte := self._reader.recv(1):
                if byte[0] != signal.SIGINT:
                    continue
                if self.seen and self.ends:
                    os._exit(EXIT_CODE)
                self.seen = True
                self.first()


def exit_at_once() -> None:
    """A `first` for work that leaves nothing behind: a model that is being loaded."""
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(2, b"\n")
    os._exit(EXIT_CODE)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Replaces the handler that would raise KeyboardInterrupt."""
