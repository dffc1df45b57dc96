"""Builds the wheel of this machine's platform into dist/ and proves that it works elsewhere.

The wheel is checked by abi3audit (it may use only the stable Python interface, so that one wheel
serves Python 3.10 and newer), on Linux it gets the oldest manylinux tag that its symbols allow,
and it is installed into a fresh environment, where the engine must load. Run it from an
environment with the extra `packaging`: python packaging/build_wheel.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
_SMOKE = """
from localllm import native
from localllm.store import catalog
assert native.lib.llm_n_isas() >= 1 and len(list(catalog.load())) >= 1
print("the engine loads:", native.text(native.lib.llm_isa_name(native.lib.llm_n_isas() - 1)))
"""


def run(*command: str, cwd: Path = ROOT) -> None:
    """Runs a command; its failure ends the build."""
    print("+", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True)


def build(folder: Path) -> Path:
    """The wheel, built in isolation from the working tree."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT))
    (wheel,) = folder.glob("localllm-*.whl")
    return wheel


def smoke_test(wheel: Path, folder: Path) -> None:
    """Installs the wheel into a fresh environment and loads the engine there."""
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [str(scripts / "python"), "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "-q", str(wheel))
    run(str(scripts / "python"), "-c", _SMOKE, cwd=folder)
    run(str(scripts / "localllm"), "--version", cwd=folder)


def main() -> None:
    """Builds, checks and installs; the wheel is in dist/ only if all of it went well."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        run(sys.executable, "-m", "abi3audit", "--strict", str(wheel))
        if sys.platform == "linux":
            repaired = folder / "repaired"
            run(sys.executable, "-m", "auditwheel", "repair", str(wheel), "-w", str(repaired))
            (wheel,) = repaired.glob("*.whl")
        smoke_test(wheel, folder)
        DIST.mkdir(exist_ok=True)
        (DIST / wheel.name).write_bytes(wheel.read_bytes())
        print(f"{DIST / wheel.name}")


if __name__ == "__main__":
    main()
