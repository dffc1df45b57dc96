"""Installs the packages of the named extras of localllm into this environment.

`llama-cpp-python` compiles for some minutes, so its progress is shown. Usage: install_extra.py
EXTRA...; localllm itself must be installed already.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
from pathlib import Path

_EXTRA = re.compile(r"""(?P<need>[^;]+);\s*extra\s*==\s*['"](?P<extra>\w+)['"]$""")
_STEP = re.compile(r"\[(\d+)/(\d+)\]")
_COMPILED = "llama-cpp-python"
_REPORT_SECONDS = 10.0
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]


def requirements(extras: list[str]) -> list[str]:
    """The requirement strings of these extras, as the installed metadata lists them."""
    found = []
    for line in importlib.metadata.requires("localllm") or []:
        match = _EXTRA.match(line)
        if match and match["extra"] in extras:
            found.append(match["need"].strip())
    return found


def needs_amx_repair() -> bool:
    """gcc 12 drops the stores that fill llama.cpp's AMX tile configuration, so that its default
    build dies with SIGSEGV on a CPU with AMX, on every quantized model."""
    cpuinfo = Path("/proc/cpuinfo")
    return (
        "CMAKE_ARGS" not in os.environ
        and cpuinfo.exists()
        and "amx_tile" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    )


def install_with_progress(requirement: str) -> int:
    """Installs one package that compiles, with a line about every ten seconds."""
    print(f"Installing {requirement}; it compiles for some minutes unless pip has it cached")
    lines: list[str] = []
    start = reported = time.monotonic()
    command = [*_PIP, "--verbose", requirement]
    env = dict(os.environ)
    if needs_amx_repair():
        env["CMAKE_ARGS"] = "-DCMAKE_CXX_FLAGS='-fno-dse -fno-tree-dse'"
        command.append("--no-cache-dir")  # the cached wheel may be one that crashes
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            step = _STEP.search(line)
            if step and time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                print(f"  {reported - start:4.0f} s: compiled {step[1]} of {step[2]}", flush=True)
    if pip.returncode:
        print("".join(lines[-60:]))
        print(f"error: {requirement} could not be installed")
    else:
        print(f"  {time.monotonic() - start:4.0f} s: {requirement} is installed")
    return pip.returncode


def main(extras: list[str]) -> int:
    """Installs all of them; returns the exit status of the first pip that failed."""
    needs = requirements(extras)
    if not needs:
        print(f"error: localllm has no extra named {' or '.join(extras)}")
        return 1
    compiled = [need for need in needs if need.startswith(_COMPILED)]
    plain = [need for need in needs if need not in compiled]
    print(f"Installing {', '.join(plain)}", flush=True)
    status = subprocess.run([*_PIP, "-qq", *plain], check=False).returncode
    for need in compiled:
        status = status or install_with_progress(need)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
