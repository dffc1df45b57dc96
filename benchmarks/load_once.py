"""Loads one model as a process of its own, so that its memory is measured alone and its death is
seen as one. Arguments: a path, and (for tests) how many
bytes are cut off the file between open and load.

Prints a JSON object: error (a class name or ""), message, growth_mib (of the peak of the resident
set over the load, file pages included), huge_mib (of it in huge pages), n_faults (page faults that
read no disk).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from localllm import native
from localllm.errors import LocalLLMError
from localllm.native import ffi, lib

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def status_mib(name: str) -> float:
    return int(STATUS.read_text().partition(f"{name}:")[2].split()[0]) / 1024


def huge_mib() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) / 1024


def main() -> None:
    path, n_cut = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    gguf = native.create(
        "llm_gguf *", lib.llm_gguf_open, lib.llm_gguf_close, native.path_bytes(path)
    )
    threads = native.create("llm_threads *", lib.llm_threads_create, lib.llm_threads_destroy, 2)
    if n_cut:
        os.truncate(path, Path(path).stat().st_size - n_cut)
    CLEAR.write_text("5")  # forgets the peak so far
    before, huge_before = status_mib("VmRSS"), huge_mib()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    error = message = ""
    model = None
    try:
        model = native.create(
            "llm_model *", lib.llm_model_load, lib.llm_model_free, gguf, threads, ffi.NULL
        )
    except LocalLLMError as e:
        error, message = type(e).__name__, e.message
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    growth, huge = status_mib("VmHWM") - before, huge_mib() - huge_before
    del model
    print(
        json.dumps(
            {
                "error": error,
                "message": message,
                "growth_mib": growth,
                "huge_mib": huge,
                "n_faults": faults,
            }
        )
    )


if __name__ == "__main__":
    main()
