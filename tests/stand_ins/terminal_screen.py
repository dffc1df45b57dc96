"""A program on a terminal, and what its screen really shows, as the emulator pyte draws it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from stand_ins.command_line import RUN_CLI, environment

_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"  # the line editor begins and ends so
_DRAWN = "\x1b[?25h"  # the cursor is shown again when it has drawn


def _usual_signals() -> None:
    """What a shell gives a program; a runner under nohup would hand down that SIGHUP is ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """A command line on a pseudo-terminal. `raw` is all that it wrote."""

    def __init__(
        self, home: Path, *args: str, columns: int = 80, lines: int = 24, cwd: Path | None = None,
        draws: bool = True, wraps: bool = False, **more: str,
    ) -> None:  # fmt: skip
        """wraps: words stay whole; else `raw` has the text of answers as it is."""
        self.raw = ""
        if args[0] == "run" and not wraps:
            args = ("run", "--no-wrap", *args[1:])
        self.screen = pyte.HistoryScreen(columns, lines, history=5000, ratio=0.5)
        self._stream = pyte.Stream(self.screen) if draws else None
        self.child = pexpect.spawn(
            sys.executable,
            [str(RUN_CLI), *args],
            env=environment(home, **{"TERM": "xterm", **more}),
            encoding="utf-8",
            codec_errors="strict",
            dimensions=(lines, columns),
            cwd=None if cwd is None else str(cwd),
            timeout=30,
            preexec_fn=_usual_signals,
        )
        self.child.delaybeforesend = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.child.close(force=True)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen that are not empty, and what was scrolled out before them."""
        history = [
            "".join(line[x].data for x in range(self.screen.columns)).rstrip()
            for line in self.screen.history.top
        ]
        return [line for line in (*history, *(s.rstrip() for s in self.screen.display)) if line]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def prompts(self) -> int:
        """How many prompts were begun."""
        return self.raw.count(_PASTE_ON)

    def pump(self, seconds: float = 0.02) -> bool:
        """Reads what the program wrote; False at its end."""
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        if self._stream is not None:
            self._stream.feed(data)
        return True

    def until(self, wanted: str | Callable[[], bool], seconds: float = 20) -> None:
        """Waits for a text on the screen, or for a condition."""
        reached = (lambda: wanted in self.text) if isinstance(wanted, str) else wanted
        deadline = time.monotonic() + seconds
        while not reached():
            alive = self.pump()
            if not reached() and (not alive or time.monotonic() > deadline):
                raise AssertionError(f"{wanted!r} did not come:\n{self.text}\n{self.raw[-300:]!r}")

    def until_prompt(self, n: int = 1) -> None:
        """Waits for the n-th prompt to be ready."""
        self.until(
            lambda: (
                self.prompts >= n
                and self.raw.rfind(_PASTE_ON) > self.raw.rfind(_PASTE_OFF)
                and _DRAWN in self.raw[self.raw.rfind(_PASTE_ON) :]
            )
        )

    def type(self, text: str) -> None:
        self.child.send(text)

    def enter(self, text: str = "", end: str = "\r") -> str:
        """Types a line, waits for the next prompt, and returns what the program put between."""
        self.until_prompt()
        n, begin = self.prompts, len(self.raw)
        self.type(text + end)
        self.until_prompt(n + 1)
        raw = self.raw[begin:]
        return raw[raw.find(_PASTE_OFF) + len(_PASTE_OFF) : raw.rfind(_PASTE_ON)]

    def resize(self, lines: int, columns: int) -> None:
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)
        os.kill(self.child.pid, signal.SIGWINCH)

    def finish(self) -> int | None:
        """Waits for the end; returns the exit code, or minus the signal that ended it."""
        while self.pump(1):
            pass
        self.child.close()
        code: int | None = self.child.exitstatus
        return code if code is not None else -self.child.signalstatus
