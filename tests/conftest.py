"""Fixtures and the summary of measured figures that all tests share."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# NumPy's threads would spin beside the engine's and llama.cpp's; read when NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell starts what runs in its background with Ctrl-C ignored, and programs of ours inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FULL = os.environ.get("FULL") == "1"
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(autouse=True, scope="module")
def _small_collections() -> Iterator[None]:
    """What other tests have imported is not looked through again and again: a collection of all of
    it takes longer than a chat template may."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether the long forms were asked for (FULL=1)."""
    return FULL


@pytest.fixture(scope="session")
def tiny() -> Callable[[str, str], Path]:
    """Makes (once per version of the generator) a tiny model of an architecture and a type."""
    from models.tiny import make

    version = hashlib.sha256(Path(make.__file__).read_bytes()).hexdigest()[:12]
    folder = ROOT / ".cache" / "tiny" / version
    return lambda arch, weight_type: make.make(folder, arch, weight_type)


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """The GGUF file of a small real model by its catalogue name, such as ``smollm2:135m``."""
    from reference.real_models import real_model as find

    return find


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Adds a line to the table of measured figures that ends the test report."""
    return pytestconfig.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.section("measured figures")
        for line in lines:
            terminalreporter.write_line(line)
