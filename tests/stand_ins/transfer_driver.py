"""Forks transfers and kills them, told by lines of JSON on stdin; answers one line each.

It has one thread, so its children, which are forked and not started, cost milliseconds. A request
has url, sha256, size, home, and: `chunk_bytes`, `keep_s` (settings), `die_at` (the child kills
itself at that step, 0: never), `n` (children at once), `kill_holder_at` (chunks that are noted when
the holder of the lease is killed). An answer has the exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2  # noqa: F401  # the children must not import it again

from localllm.errors import LocalLLMError
from localllm.store.offer import Location, RemoteFile
from localllm.store.transfer import journal, partial
from stand_ins.transferring import Place, faster


class Steps:
    """Counts what a transfer does to the disk, and ends the process at one of those steps."""

    def __init__(self, die_at: int) -> None:
        self._die_at, self.n = die_at, 0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self.n += 1
            if self.n == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: Any) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate"):
            self.step()


class TornWrites(ModuleType):
    """`os` whose writes come in two halves, with steps around and between."""

    def __init__(self, steps: Steps) -> None:
        super().__init__("os")
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        self._steps.step()
        n = os.write(descriptor, data[: len(data) // 2 + 1])
        self._steps.step()
        return n + os.write(descriptor, data[n:])


def child(request: dict[str, Any]) -> int:
    steps = Steps(request.get("die_at", 0))
    sys.addaudithook(steps.audit)
    torn = TornWrites(steps)
    journal.os = partial.os = torn  # type: ignore[attr-defined]
    file = RemoteFile(
        "model.gguf", request["size"], request["sha256"], lambda: Location(request["url"])
    )
    more = {name: request[name] for name in ("chunk_bytes", "keep_s") if name in request}
    place = Place(Path(request["home"]), faster(**more))
    try:
        place.fetch(file)
    except LocalLLMError as e:
        print(f"{e} ({e.hint})", file=sys.stderr)
        return 1
    Path(request["home"], "steps").write_text(str(steps.n))
    return 0


def holder_at(folder: Path, n_chunks: int) -> int:
    """The process that holds the lease, once so many chunks are noted; 0 before."""
    logs, leases = list(folder.glob("*.journal")), list(folder.glob("*.lease"))
    if not logs or len(leases) != 1 or logs[0].read_bytes().count(b"\n") < n_chunks:
        return 0
    try:
        return int(json.loads(leases[0].read_bytes())["pid"])
    except (OSError, ValueError):  # it is being written
        return 0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    pids = []
    for _ in range(request.get("n", 1)):
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(child(request))
            except BaseException:
                traceback.print_exc()
                os._exit(3)
        pids.append(pid)
    if n_chunks := request.get("kill_holder_at"):
        while not (pid := holder_at(Path(request["home"], "downloads"), n_chunks)):
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
    return {"codes": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
