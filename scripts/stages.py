"""Runs named stages one after another and sums them up; used by run_checks.py and run_tests.py."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TAIL_LINES = 80
_PROGRESS = re.compile(r"\[\d+/\d+\] (Building|Linking|Re-checking)|-- ")


class Stages:
    """A failed stage does not stop the later ones. On CI (CI=true) a stage left out has failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.on_ci = os.environ.get("CI") == "true"

    def run(self, name: str, *commands: Sequence[str], env: dict[str, str] | None = None) -> bool:
        """Runs the commands until one fails; their output is shown only then."""
        start = time.monotonic()
        for command in commands:
            done = subprocess.run(
                list(command),
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            if done.returncode:
                lines = [s for s in done.stdout.splitlines() if not _PROGRESS.match(s)]
                print("\n".join(lines[-_TAIL_LINES:]))
                self._report(name, f"FAILED (status {done.returncode}): {shlex.join(command)}")
                self.failed.append(name)
                return False
        self._report(name, f"ok ({time.monotonic() - start:.1f} s)")
        return True

    def left_out(self, name: str, reason: str) -> None:
        """Says in one line that an optional stage was left out."""
        self._report(name, f"left out: {reason}")
        if self.on_ci:
            self.failed.append(name)

    def _report(self, name: str, what: str) -> None:
        print(f"{name:.<34} {what}", flush=True)

    def summary(self) -> int:
        """Prints what failed; the exit status."""
        if self.failed:
            print(f"failed: {', '.join(self.failed)}", flush=True)
        return 1 if self.failed else 0
