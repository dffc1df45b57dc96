"""`localllm serve` as a program of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    url: str  # without /v1


@contextlib.contextmanager
def served(
    *args: Path | str, stdout: IO[str] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """A server that is killed in the end; on a free port, if `args` name none."""
    port = () if "--port" in args else ("--port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "localllm", "serve", *port, *map(str, args)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**(env or os.environ), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield Served(process, _url(process))
    finally:
        process.kill()
        process.wait()


def _url(process: subprocess.Popen[str]) -> str:
    """Reads what the server says until it has said where it is; the rest is thrown away."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"https?://\S+", line):
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            return found[0].removesuffix("/v1")
    raise AssertionError(f"no server: {process.wait()} {''.join(said)}")
