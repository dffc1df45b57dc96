"""Which model a file holds, told without reading forty gigabytes.

The store knows the sha256 of what it pulled. Any other file gets a digest of its size, its first
and last MiB and 64 KiB at each of 64 places between: it changes with the header, with the
quantization and with the weights of a finetune, and reads 6 MiB at most. A model in several files
(`-00001-of-00003.gguf`) has one digest, whichever of them is named.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from localllm.errors import FileError

ENDS_BYTES = 1 << 20
PLACES = 64
PLACE_BYTES = 64 << 10
MAX_PARTS = 999
_CHUNK = 1 << 20
_TICK_S = 0.05  # the clock of a file system stands still for less
_PART = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf", re.ASCII)


def sampled_digest(path: Path) -> str:
    """`sample:` and 64 hexadecimal digits. Raises `FileError`."""
    hashed = hashlib.sha256()
    for part in _parts(path):
        try:
            _require_regular(part)
            with part.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                hashed.update(f"{size};".encode())
                starts = [(0, ENDS_BYTES), (max(0, size - ENDS_BYTES), ENDS_BYTES)]
                starts += [(size * i // (PLACES + 1), PLACE_BYTES) for i in range(1, PLACES + 1)]
                for start, n_bytes in starts:
                    file.seek(start)
                    hashed.update(file.read(n_bytes))
        except OSError as e:
            raise FileError(f"cannot read {part}: {e.strerror or e}") from e
    return f"sample:{hashed.hexdigest()}"


def modified_at(path: Path) -> tuple[int, ...]:
    """When each file of a model was written last, in nanoseconds; none if they cannot be looked
    at."""
    try:
        return tuple(part.stat().st_mtime_ns for part in _parts(path))
    except OSError:
        return ()


def full_digest(path: Path, progress: Callable[[float], None] = lambda share: None) -> str:
    """`sha256:` and 64 hexadecimal digits of all bytes; `progress` is called with 0.0 .. 1.0.
    Raises `FileError`."""
    n_read = 0

    def count(n_bytes: int) -> None:
        nonlocal n_read
        n_read += n_bytes
        progress(min(1.0, n_read / max(size, 1)))

    try:
        size = path.stat().st_size
        return f"sha256:{sha256_of(path, count)[0]}"
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror or e}") from e


def sha256_of(path: Path, add: Callable[[int], None]) -> tuple[str, int]:
    """The hash of all bytes, and how many there were; `add` gets the number of each piece. Raises
    `OSError`, and `FileError` for what is no regular file."""
    _require_regular(path)
    hashed, n_read = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
            n_read += len(chunk)
            add(len(chunk))
    return hashed.hexdigest(), n_read


def unchanged_since(path: Path, digest: str, at_work: Callable[[], None]) -> int | None:
    """When a file that was written to, or touched, was written last, in nanoseconds, if all of it
    still has this sha256; else None, as for a digest of another kind: a sample would not show a few
    bytes. A write since then gives it another time. `at_work` is called after each piece."""
    if not digest.startswith("sha256:"):
        return None
    try:
        written_ns = path.stat().st_mtime_ns
        time.sleep(_TICK_S)
        if f"sha256:{sha256_of(path, lambda n_bytes: at_work())[0]}" != digest:
            return None
    except (OSError, FileError):
        return None
    return written_ns


def digest_like(
    path: Path, digest: str, progress: Callable[[float], None] = lambda share: None
) -> str:
    """The digest of a file, of the kind of another one that it is to be compared with."""
    return full_digest(path, progress) if digest.startswith("sha256:") else sampled_digest(path)


def _parts(path: Path) -> list[Path]:
    """All files of the model that `path` belongs to, in their order."""
    match = _PART.search(path.name)
    if match is None or match.end() != len(path.name):
        return [path]
    n = int(match[2])
    if not 1 <= int(match[1]) <= n <= MAX_PARTS:
        return [path]
    stem = path.name[: match.start()]
    return [path.with_name(f"{stem}-{i:05}-of-{n:05}.gguf") for i in range(1, n + 1)]


def _require_regular(path: Path) -> None:
    """A pipe would be waited for."""
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is not a regular file", "A model is a GGUF file on a disk.")
