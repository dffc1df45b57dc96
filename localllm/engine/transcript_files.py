"""Tokens of conversations on the disk, so that they outlive the process as the pages do that were
computed from them: `<cache>/kv/<model>/transcripts/<hash>`, two for each answer: where it ends, and
where it was called for.

    magic 8 | version u32 | tokens u32 | name 64 | token ids u32 [tokens] | blake2b-256 of all above

Little-endian. The ids are all of the conversation up to there. The name stands for its
text; see transcripts.py. The disk tier counts these files among its own and deletes those that were
not used for longest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from localllm.engine import kv_files
from localllm.engine.kv_files import DamagedPageError
from localllm.store.durable import TEMPORARY
from localllm.store.kv_cache import model_folder

VERSION = 1
_MAGIC = b"LLLMTKNS"
_HEAD = struct.Struct("<8sII64s")
_HASH_BYTES = 32
_MOST_BYTES = 64 << 20

log = logging.getLogger("localllm.engine")


class TranscriptFiles:
    """root: `Paths.kv`. For any thread; another one writes. A disk that refuses ends it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writer = ThreadPoolExecutor(1, "transcripts")
        self._ready: set[Path] = set()  # folders, of the thread that writes
        self.stopped = False
        self.n_damaged = 0

    def keep(self, model: str, name: bytes, ids: Sequence[int]) -> None:
        """Writes the tokens up to a place as soon as it can be. model: its digest. name [64]."""
        if not self.stopped:
            self._writer.submit(self._write, self._path(model, name), name, array("I", ids))

    def find(self, model: str, name: bytes) -> list[int] | None:
        """The tokens up to a place, which is used by that; None: it is not there."""
        path = self._path(model, name)
        try:
            ids = _read(path, name)
        except DamagedPageError as e:
            self._discard(path, e)
            return None
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)
        return ids

    def flush(self) -> None:
        """Waits until all is written that was handed over before."""
        self._writer.submit(lambda: None).result()

    def _path(self, model: str, name: bytes) -> Path:
        short = blake2b(name, digest_size=_HASH_BYTES).hexdigest()
        return model_folder(self._root, model) / "transcripts" / short

    def _write(self, path: Path, name: bytes, ids: array[int]) -> None:
        if self.stopped or path.exists():
            return
        head = _HEAD.pack(_MAGIC, VERSION, len(ids), name)
        data = head + struct.pack(f"<{len(ids)}I", *ids)
        data += kv_files.checksum(data)
        number = f"{threading.get_ident()}.{os.getpid()}"
        temporary = path.with_name(f".{path.name[:16]}.{number}{TEMPORARY}")
        try:
            if path.parent not in self._ready or not path.parent.exists():
                self._make_folder(path.parent)
            kv_files.put(path, temporary, [data])
        except OSError as e:
            self.stopped = True
            log.warning(
                "tokens of conversations are not written to the disk any more: %s: %s",
                path.parent, e.strerror or e,
            )  # fmt: skip

    def _make_folder(self, folder: Path) -> None:
        self._root.parent.mkdir(parents=True, exist_ok=True)
        for each in (self._root, folder.parent, folder):
            kv_files.private_folder(each)
        for path in folder.glob(f"*{TEMPORARY}"):
            kv_files.clear_temporary(path)
        self._ready.add(folder)

    def _discard(self, path: Path, reason: DamagedPageError) -> None:
        self.n_damaged += 1
        if self.n_damaged == 1:
            log.warning(
                "%s is no good record of a conversation and is removed, as are others like it: %s",
                path, reason,
            )  # fmt: skip
        with contextlib.suppress(OSError):
            path.unlink()


def read_ids(path: Path) -> list[int]:
    """The tokens in a file, whatever its text. Raises `DamagedPageError`, `OSError`."""
    return _read(path, None)


def _read(path: Path, name: bytes | None) -> list[int]:
    """Raises `DamagedPageError`, `FileNotFoundError` and other `OSError`. name None: any."""
    descriptor = kv_files.opened(path)
    try:
        size = os.fstat(descriptor).st_size
        if not _HEAD.size + _HASH_BYTES <= size <= _MOST_BYTES:
            raise DamagedPageError(f"it has {size} bytes")
        raw = kv_files.read(descriptor, 0, size)
    finally:
        os.close(descriptor)
    magic, version, n_ids, named = _HEAD.unpack_from(raw)
    if magic != _MAGIC or version != VERSION:
        raise DamagedPageError("it is of another version, or of another program")
    if kv_files.checksum(raw[:-_HASH_BYTES]) != raw[-_HASH_BYTES:]:
        raise DamagedPageError("its checksum is wrong")
    if named != (name or named) or len(raw) != _HEAD.size + 4 * n_ids + _HASH_BYTES:
        raise DamagedPageError("its name is not that of its text")
    return list(struct.unpack_from(f"<{n_ids}I", raw, _HEAD.size))
