"""Everything that `make check` checks: style, types, sizes, layers, symbols, other systems."""

from __future__ import annotations

import shutil
import sys

from sources import source_files
from stages import ROOT, Stages

CHECK_BUILD = "build/native"  # run_tests.py builds on it
PYTHON = sys.executable


def native_sources() -> list[str]:
    """The C files and headers of the native part."""
    files = source_files(ROOT)
    return [p.as_posix() for p in files if p.parts[0] == "native" and p.suffix in (".c", ".h")]


def main() -> int:
    """Runs all stages; 1 if one failed."""
    stages = Stages()
    stages.run("ruff", ["ruff", "check", "--quiet", "."])
    stages.run("ruff format", ["ruff", "format", "--check", "--quiet", "."])
    stages.run("mypy", ["mypy", "--strict", "localllm", "scripts", "packaging"])
    stages.run("clang-format", ["clang-format", "--dry-run", "-Werror", *native_sources()])
    stages.run("sizes and names", [PYTHON, "scripts/check_sizes.py"])
    stages.run("import directions", [PYTHON, "scripts/check_imports.py"])
    built = stages.run(
        "native build, warnings as errors",
        ["cmake", "-S", "native", "-B", CHECK_BUILD, "-G", "Ninja", "-DLLM_WERROR=ON"],
        ["cmake", "--build", CHECK_BUILD],
    )
    if built:
        stages.run("kernel symbols", [PYTHON, "scripts/check_symbols.py", CHECK_BUILD])
        stages.run("vector code", [PYTHON, "scripts/check_vector_code.py", CHECK_BUILD])
    for target in ("aarch64-macos", "x86_64-windows-gnu"):
        stages.run(f"build for {target}", [PYTHON, "scripts/cross.py", target, f"build/{target}"])
    needed = ["aarch64-linux-gnu-gcc", "qemu-aarch64"]
    missing = [tool for tool in needed if not shutil.which(tool)]
    if missing:
        stages.left_out("tests on aarch64-linux", f"{' and '.join(missing)} not found")
    else:
        target = "aarch64-linux-gnu"
        stages.run(f"tests on {target}", [PYTHON, "scripts/cross.py", target, f"build/{target}"])
        code = [PYTHON, "scripts/check_vector_code.py", f"build/{target}"]
        stages.run(f"vector code, {target}", code)
        limits = [PYTHON, "scripts/code_limits.py", f"build/{target}"]
        stages.run(f"code limits, {target}", limits)
    return stages.summary()


if __name__ == "__main__":
    sys.exit(main())
