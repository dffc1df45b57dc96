"""Where the system refuses a thread, a command says so with the limits, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ADDRESS_SPACE, STACK = 2 << 30, 3 << 30  # no stack of Python's threads fits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stacks by RLIMIT_STACK: glibc")


@pytest.mark.parametrize(
    "command", [["run", "MODEL", "Hi", "--no-record"], ["share", "--port", "0"]]
)
def test_a_refused_thread_is_named_with_the_limits(
    command: list[str], tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    import resource

    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("the stack's hard limit is too low here")
    model = str(tiny("llama", "Q4_0"))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    done = subprocess.run(
        [sys.executable, "-m", "localllm", *(model if c == "MODEL" else c for c in command)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=limit,
        env={**os.environ, "LOCALLLM_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "error: the system refused a thread to this process" in done.stderr
    assert "address space 2.1 GB" in done.stderr and "a stack 3.2 GB" in done.stderr
    assert "hint: " in done.stderr and "ulimit -v" in done.stderr
    assert "internal error" not in done.stderr
