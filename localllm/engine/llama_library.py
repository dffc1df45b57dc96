"""The door to llama.cpp: its shared library through the low-level part of `llama-cpp-python`.

The package is an extra, imported when a model first needs it. What llama.cpp would write to the
terminal is kept here instead, for error messages.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections import deque
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from localllm.errors import UnsupportedError
from localllm.native import ffi, lib

PACKAGE = "llama-cpp-python"
MIN_VERSION = (0, 3, 36)
HINT = "Install it with: pip install 'localllm[compat]'"
MAX_NOTES = 16
#: How long OpenMP's threads wait for each other without sleeping. With its default a second busy
#: program slows llama.cpp twentyfold (SmolLM2 on 2 CPUs: 78 tokens/s alone, 4 beside one); with
#: this 74 and 48. Read when the library is loaded.
SPIN_COUNT = "3000"

# Of enum ggml_log_level in ggml's include/ggml.h.
_WARN, _ERROR, _CONTINUED = 3, 4, 5

_lock = threading.Lock()


class Library:
    """llama.cpp's functions (`api`, the module `llama_cpp.llama_cpp`) and what it said last."""

    def __init__(self, api: Any, version: str) -> None:
        self.api, self.version = api, version
        self._notes: deque[str] = deque(maxlen=MAX_NOTES)
        self._keeps_line = False
        # llama.cpp holds this pointer as long as the process lives, and so does the cached Library.
        self.log = api.llama_log_callback(self._take_note)
        api.llama_log_set(self.log, None)
        api.llama_backend_init()
        self.step_poll = _step_poll(api)

    def forget_notes(self) -> None:
        self._notes.clear()

    def last_error(self, otherwise: str) -> str:
        """What llama.cpp gave as the reason of its last failure, without the name of the function
        that said so."""
        lines = [line.partition(": ")[2] or line for line in self._notes]
        causes = [line.partition("error loading model: ")[2] for line in lines]
        found = [cause for cause in causes if cause] or lines[:1]
        return ascii(found[0].strip()[:300])[1:-1] if found else otherwise

    def _take_note(self, level: int, text: bytes, _data: Any) -> None:
        if level != _CONTINUED:
            self._keeps_line = level in (_WARN, _ERROR)
            if self._keeps_line:
                self._notes.append(text.decode("utf-8", "replace").rstrip("\n"))
        elif self._keeps_line and self._notes:
            self._notes[-1] += text.decode("utf-8", "replace").rstrip("\n")


def _step_poll(api: Any) -> Any:
    """A C function that counts its calls and tells whether a flag is raised: see `CancelFlag`.

    llama.cpp asks after each node of its graph, a thousand times a token. A Python function would
    wait for the interpreter's lock each time, behind the thread that draws the screen.
    """
    address = int(ffi.cast("intptr_t", ffi.addressof(lib, "llm_step_poll")))
    return ctypes.cast(address, api.ggml_abort_callback)


@lru_cache(maxsize=1)
def _load() -> Library:
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise UnsupportedError(f"{PACKAGE}, the second engine, is not installed", HINT) from None
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise UnsupportedError(f"{PACKAGE} is version {version}, {oldest} or newer is needed", HINT)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    try:
        from llama_cpp import llama_cpp as api

        return Library(api, version)
    except (ImportError, OSError, RuntimeError, AttributeError) as e:
        raise UnsupportedError(
            f"{PACKAGE} {version} is installed but cannot be loaded: {e}",
            "Install it again; LLAMA_CPP_LIB_PATH, where set, must name a build of that version.",
        ) from e


def load() -> Library:
    """The library, loaded once. Raises `UnsupportedError` if the package is missing, too old or
    broken."""
    with _lock:
        return _load()


def knows(architecture: str) -> bool | None:
    """Whether the installed library has the name of an architecture in its table, where it lies as
    a C string. Nothing is loaded. None: the package, or its library, is not here."""
    try:
        spec = importlib.util.find_spec("llama_cpp")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    given = os.environ.get("LLAMA_CPP_LIB_PATH")
    folder = Path(given or Path(spec.submodule_search_locations[0], "lib"))
    try:
        libraries = [path for path in folder.iterdir() if path.stem.removeprefix("lib") == "llama"]
        if not libraries:
            return None
        return f"{architecture}\0".encode() in libraries[0].read_bytes()
    except OSError:
        return None
