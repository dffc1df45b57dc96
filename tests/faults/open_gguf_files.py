"""Opens the GGUF files named on standard input, one path a line, and says what came of each.

Run as a process of its own by test_gguf_hostile.py, so that a crash is seen as one and memory is
measured alone. Prints a JSON object a line: path, error (a class name or ""), message, ms
(CPU time: the machine may be busy); then
one with the growth of the resident set's peak, in MiB, over all of them.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from localllm.errors import LocalLLMError
from localllm.store.inspect import GgufFile


def open_one(path: str) -> dict[str, object]:
    start = time.process_time()
    error, message = "", ""
    try:
        with GgufFile(path) as file:
            ms = (time.process_time() - start) * 1e3
            file.tensors()
            dict(file.metadata)
    except LocalLLMError as e:
        ms = (time.process_time() - start) * 1e3
        error, message = type(e).__name__, e.message
    return {"path": path, "error": error, "message": message, "ms": ms}


def _peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the process that started this one
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    paths = sys.stdin.read().splitlines()
    open_one("/nonexistent")
    # Linux can forget a peak, such as the imports' own; elsewhere the growth reads a little low.
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
    before = _peak_mib()
    for path in paths:
        print(json.dumps(open_one(path)), flush=True)
    print(json.dumps({"growth_mib": _peak_mib() - before}), flush=True)


if __name__ == "__main__":
    main()
