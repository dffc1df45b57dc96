"""Which model a file holds, told without reading forty gigabytes.

The store knows the sha256 of what it pulled. Any other file gets a digest of its size, its first
and last MiB and 64 KiB at each of 64 places between: it changes with the header, with the
quantization and with the weights of a finetune, and reads 6 MiB at most.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from localllm.errors import FileError

ENDS_BYTES = 1 << 20
PLACES = 64
PLACE_BYTES = 64 << 10


def sampled_digest(path: Path) -> str:
    """`sample:` and 64 hexadecimal digits. Raises `FileError`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            starts = [(0, ENDS_BYTES), (max(0, size - ENDS_BYTES), ENDS_BYTES)]
            starts += [(size * i // (PLACES + 1), PLACE_BYTES) for i in range(1, PLACES + 1)]
            hashed = hashlib.sha256(str(size).encode())
            for start, n_bytes in starts:
                file.seek(start)
                hashed.update(file.read(n_bytes))
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror or e}") from e
    return f"sample:{hashed.hexdigest()}"
