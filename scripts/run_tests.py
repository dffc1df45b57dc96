"""Everything that `make test` runs; pytest comes last. Arguments are handed to pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stages import ROOT, Stages

PYTHON = sys.executable
#: Kernels with checks in them compile several times faster so.
_LIGHT = ["-DCMAKE_C_FLAGS=-O1 -g1"]
CLANGS = ("clang", "clang-14", "clang-15", "clang-16", "clang-17", "clang-18", "clang-19")


def native_tests(build: str, *definitions: str, select: str = ".") -> list[list[str]]:
    """The commands that configure, build and run the native tests whose name matches `select`."""
    return [
        ["cmake", "-S", "native", "-B", build, "-G", "Ninja", *definitions],
        ["cmake", "--build", build],
        ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-R", select],
    ]


def builds_with(compiler: str, sanitizer: str) -> bool:
    """Whether a program compiled and linked with this sanitizer runs here."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.c"), Path(folder, "probe")
        entry = "LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }"
        body = f"int {entry}" if "fuzzer" in sanitizer else "int main(void) { return 0; }"
        source.write_text(f"{body}\n", encoding="utf-8")
        compile_it = [compiler, f"-fsanitize={sanitizer}", str(source), "-o", str(program)]
        run_it = [str(program), "-runs=0"]
        return all(
            subprocess.run(command, capture_output=True, check=False).returncode == 0
            for command in (compile_it, run_it)
        )


def clang() -> str | None:
    return next((path for path in map(shutil.which, CLANGS) if path), None)


def sanitizer_stages(stages: Stages) -> None:
    """The native tests under address and undefined, then those of the thread pool and of the
    executor on it under thread. With clang, where it is there: it checks more, see CMakeLists."""
    compiler = clang() or os.environ.get("CC", "cc")
    for sanitizer, select in (("address,undefined", "."), ("thread", "thread|exec")):
        name = f"native tests, {sanitizer}"
        if not builds_with(compiler, sanitizer):
            stages.left_out(name, f"{compiler} has no -fsanitize={sanitizer} here")
            continue
        build = f"build/native-{sanitizer.replace(',', '-')}"
        definitions = [
            f"-DCMAKE_C_COMPILER={compiler}",
            f"-DLLM_SANITIZE={sanitizer}",
            "-DCMAKE_BUILD_TYPE=None",
            *_LIGHT,
        ]
        if not stages.run(name, *native_tests(build, *definitions, select=select)):
            continue
        for replay in sorted((ROOT / build).glob("replay_*")) if select == "." else []:
            inputs = map(str, sorted(fuzz_seeds(replay.stem.removeprefix("replay_")).iterdir()))
            stages.run(f"{replay.stem}, {sanitizer}", [str(replay), *inputs])


def fuzz_seeds(target: str) -> Path:
    """A folder with the corpus that `tests/faults/<target>_corpus.py` makes."""
    folder = ROOT / "build" / f"seeds-{target}"
    shutil.rmtree(folder, ignore_errors=True)
    generator = ROOT / "tests" / "faults" / f"{target}_corpus.py"
    subprocess.run([PYTHON, str(generator), str(folder)], check=True)
    return folder


def fuzz_stage(stages: Stages) -> None:
    """A short run of every libFuzzer target (60 s each with FULL=1), corpus first."""
    compiler = clang()
    if compiler is None or not builds_with(compiler, "fuzzer,address,undefined"):
        stages.left_out("fuzzing", "no clang with libFuzzer found")
        return
    build = "build/native-fuzz"
    definitions = [f"-DCMAKE_C_COMPILER={compiler}", "-DLLM_FUZZ=ON", "-DLLM_TESTS=OFF"]
    definitions += ["-DCMAKE_BUILD_TYPE=None", *_LIGHT]
    configure, compile_it, _ = native_tests(build, *definitions)
    if not stages.run("fuzz targets, build", configure, compile_it):
        return
    seconds = 60 if os.environ.get("FULL") == "1" else 15
    for source in sorted((ROOT / "native/fuzz").glob("fuzz_*.c")):
        target = source.stem
        found = ROOT / build / f"corpus-{target}"
        found.mkdir(parents=True, exist_ok=True)
        folders = [str(found), str(fuzz_seeds(target.removeprefix("fuzz_")))]
        limits = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=1024"]
        stages.run(f"{target}, {seconds} s", [f"{build}/{target}", *limits, *folders])


def main(pytest_arguments: list[str]) -> int:
    """Runs all stages, then pytest; 1 if anything failed."""
    stages = Stages()
    # Not a stage: it says what it fetches while it does.
    if subprocess.run([PYTHON, "scripts/fetch_test_data.py"], cwd=ROOT, check=False).returncode:
        stages.failed.append("test data")
    stages.run("native tests", *native_tests("build/native"))
    if shutil.which("valgrind") and shutil.which("objdump"):
        stages.run("code limits", [PYTHON, "scripts/code_limits.py", "build/native"])
    else:
        stages.left_out("code limits", "valgrind and objdump not found")
    sanitizer_stages(stages)
    fuzz_stage(stages)
    failed = stages.summary()
    pytest = [PYTHON, "-m", "pytest", *pytest_arguments]
    return subprocess.run(pytest, cwd=ROOT, check=False).returncode or failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
