"""The terminal around an answer: what is typed meanwhile is kept for the prompt and not mixed into
the text; and the signals that end the program leave the terminal as it was."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """While the block runs, a terminal on stdin shows nothing of what is typed."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (AttributeError, OSError, ValueError, termios.error):  # closed, or no terminal
        yield
        return
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP unwind it: whoever changed the terminal restores
    it."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
