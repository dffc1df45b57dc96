"""Derived merges of SentencePiece vocabularies, kept between runs.

One file per vocabulary, `<digest>.merges`: 8 bytes of magic, the SHA-256 of what follows, then
int32 little-endian pairs of token ids, best merge first. A file that does not fit is ignored and
written anew; a folder that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

_MAGIC = b"llmmrg02"
_HEADER_BYTES = len(_MAGIC) + 32


def digest(
    tokens: list[bytes], types: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
) -> str:
    """The name of a vocabulary's file."""
    h = hashlib.sha256(_MAGIC)
    h.update(np.fromiter(map(len, tokens), "<u4", len(tokens)).tobytes())
    h.update(b"".join(tokens))
    h.update(types.astype("<i4").tobytes())
    h.update(scores.astype("<f4").tobytes())
    return h.hexdigest()


def load(folder: Path, name: str, n_vocab: int) -> npt.NDArray[np.int32] | None:
    """[n_merges, 2] pairs of ids below `n_vocab`; None if there is no sound file."""
    try:
        data = (folder / f"{name}.merges").read_bytes()
    except OSError:
        return None
    body = data[_HEADER_BYTES:]
    if data[: len(_MAGIC)] != _MAGIC or len(body) % 8:
        return None
    if data[len(_MAGIC) : _HEADER_BYTES] != hashlib.sha256(body).digest():
        return None
    pairs = np.frombuffer(body, "<i4").astype(np.int32).reshape(-1, 2)
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= n_vocab):
        return None
    return pairs


def save(folder: Path, name: str, pairs: npt.NDArray[np.int32]) -> None:
    """Writes the file whole or not at all."""
    body = pairs.astype("<i4").tobytes()
    temporary: str | None = None
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f"{name}.", suffix=".part", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        Path(temporary).replace(folder / f"{name}.merges")
        temporary = None
    if temporary is not None:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
