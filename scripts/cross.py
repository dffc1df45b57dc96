"""Builds the native core and its tests for another system. Usage: cross.py TARGET BUILD_FOLDER

Targets: aarch64-macos and x86_64-windows-gnu by `python -m ziglang cc` (compiled and linked, not
run); aarch64-linux-gnu by gcc's cross compiler, its tests run under qemu-user: all of them on a CPU
that has everything, the products on CPUs that have less, too.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: CMake's names of the system and the processor.
SYSTEMS = {
    "aarch64-macos": ("Darwin", "arm64"),
    "x86_64-windows-gnu": ("Windows", "AMD64"),
    "aarch64-linux-gnu": ("Linux", "aarch64"),
}
RUN_BY_QEMU = "aarch64-linux-gnu"
#: CPUs that qemu knows, and the instruction sets that we must choose there, best last. The first
#: runs all tests.
CPUS = {
    "max": ("scalar", "asimd", "neon", "i8mm"),
    "neoverse-n1": ("scalar", "asimd", "neon"),
    "cortex-a72": ("scalar", "asimd"),
}


def zig_wrappers(target: str, folder: Path) -> list[str]:
    """Writes one-line scripts that call zig's tools for a target; CMake definitions naming them."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise SystemExit("error: the package ziglang is not installed")
    zig = shlex.quote(str(Path(spec.origin).parent / "zig"))
    definitions = []
    for variable, tool in (
        ("CMAKE_C_COMPILER", f"cc -target {target}"),
        ("CMAKE_AR", "ar"),
        ("CMAKE_RANLIB", "ranlib"),
    ):
        script = folder / variable.lower()
        script.write_text(f'#!/bin/sh\nexec {zig} {tool} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        definitions.append(f"-D{variable}={script}")
    return definitions


def qemu(cpu: str) -> list[str]:
    """The command that runs a program on an emulated CPU."""
    return ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]


def runs_by_qemu(build: Path) -> list[list[str]]:
    """The commands that test a build under qemu."""
    runs = [["ctest", "--test-dir", str(build), "--output-on-failure", "--timeout=600"]]
    for i, (cpu, isas) in enumerate(CPUS.items()):
        runs.append([*qemu(cpu), str(build / "test_isas"), *isas])
        if i:
            runs.append([*qemu(cpu), str(build / "test_matmul")])
    return runs


def definitions(target: str, folder: Path) -> list[str]:
    """The CMake definitions of a target's tool chain."""
    system, processor = SYSTEMS[target]
    common = [
        f"-DCMAKE_SYSTEM_NAME={system}",
        f"-DCMAKE_SYSTEM_PROCESSOR={processor}",
        "-DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER",
    ]
    if target == RUN_BY_QEMU:
        emulator = ";".join(qemu(next(iter(CPUS))))
        return [
            *common,
            "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
            f"-DCMAKE_CROSSCOMPILING_EMULATOR={emulator}",
        ]
    if system == "Darwin":
        # CMake looks for Apple's tools, which an object and a plain executable do not need.
        common += ["-DCMAKE_INSTALL_NAME_TOOL=/bin/true", "-DCMAKE_OSX_SYSROOT="]
    return common + zig_wrappers(target, folder)


def main(target: str, build: Path) -> int:
    """Configures, builds and, under qemu, tests; the first status that is not 0."""
    build.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", str(ROOT / "native"), "-B", str(build), "-G", "Ninja"]
    options = ["-DLLM_WERROR=ON", "--no-warn-unused-cli", *definitions(target, build.resolve())]
    commands = [[*configure, *options], ["cmake", "--build", str(build)]]
    if target == RUN_BY_QEMU:
        commands += runs_by_qemu(build)
    for command in commands:
        status = subprocess.run(command, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
