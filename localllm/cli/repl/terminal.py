"""The terminal around an answer: what is typed meanwhile is kept for the prompt and not mixed into
the text; and the signals that end the program leave the terminal as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

# What the line editor may have changed: colours, a hidden cursor, bracketed paste, and the line.
_USUAL = b"\x1b[0m\x1b[?25h\x1b[?2004l\n"


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
    """While the block runs, SIGTERM and SIGHUP leave the terminal as it was at the block's start
    and end the process as they do by default.

    Nothing is unwound: an exception out of a signal handler is lost when it lands in a finalizer,
    and lands between a change of the terminal and the code that would undo it.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names}
    restore = _restorer()

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _restorer() -> Callable[[], None]:
    """What sets the terminal of stdin back to what it is now, if there is one."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        modes = termios.tcgetattr(descriptor)
    except (ImportError, AttributeError, OSError, ValueError, termios.error):
        return lambda: None

    def restore() -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSANOW, modes)
            os.write(descriptor, _USUAL)

    return restore
