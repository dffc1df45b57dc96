"""A file in one stream, for servers that tell neither its size nor what would name its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from localllm.store.transfer.http import Fault, Transport
from localllm.store.transfer.look import MAX_SIZE, Remote
from localllm.store.transfer.partial import FLAGS, LeaseLost


def read_whole(
    transport: Transport,
    remote: Remote,
    data: Path,
    may_write: Callable[[], bool],
    on_bytes: Callable[[int], None],
    wanted: str | None,
) -> tuple[int, str]:
    """Writes the file to `data`, from its start; returns its size and sha256.

    on_bytes: called in this thread with the bytes so far. Raises `Fault` if the stream breaks off
    or the sha256 is not `wanted`, `OSError`, `LeaseLost`."""
    hashed, n = hashlib.sha256(), 0
    with os.fdopen(os.open(data, FLAGS | os.O_TRUNC, 0o666), "wb") as file:
        with transport.get(remote.route, 0, None) as answer:
            if not answer.ends and remote.size is None and wanted is None:
                raise Fault(
                    f"{answer.host} tells neither size nor hash: a broken stream would look whole",
                    grave=True,
                )
            for block in answer.blocks():
                if not may_write():
                    raise LeaseLost
                n += len(block)
                if n > (remote.size or MAX_SIZE):
                    raise Fault(f"{answer.host} sent more than {remote.size or MAX_SIZE} bytes")
                file.write(block)
                hashed.update(block)
                on_bytes(n)
            if n == 0 or (remote.size is not None and n < remote.size):
                raise Fault(f"{answer.host} ended after {n} of {remote.size or 'some'} bytes")
        sha256 = hashed.hexdigest()
        if wanted not in (None, sha256):
            raise Fault(
                f"{answer.host} sent a wrong file: expected {wanted}, got {sha256}", grave=True
            )
        file.flush()
        os.fsync(file.fileno())
    return n, sha256
