"""Files on their way, as they lie in the download folder.

For each there are `<key>.partial` (the data), `<key>.journal`, `<key>.json` (what it is, for
people) and, while a process fetches it, a lease. The key is the sha256 of the file if the source
names it, else that of a text with its address, size and ETag. They stay until the file is whole or
somebody removes them."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from localllm.errors import FileError
from localllm.store.durable import TEMPORARY, disk_error, is_stale, replacing
from localllm.store.transfer import journal, lease

_KEY = re.compile(r"[0-9a-f]{64}")
_NOTE_BYTES = 64 << 10
_SWEPT_AFTER_S = 60  # process numbers of other machines say nothing, but they write in moments


@dataclass(frozen=True)
class Files:
    """The paths of one key."""

    folder: Path
    key: str

    @property
    def data(self) -> Path:
        return self.folder / f"{self.key}.partial"

    @property
    def journal(self) -> Path:
        return self.folder / f"{self.key}.journal"

    @property
    def note(self) -> Path:
        return self.folder / f"{self.key}.json"

    def write_note(self, name: str, label: str, source: str, size: int | None) -> None:
        """name: of the file, as the source calls it; label: what the user asked for; source: its
        address, without secrets. Raises `OSError`."""
        document = {"version": 1, "name": name, "label": label, "source": source, "size": size}
        with replacing(self.note) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")

    def forget(self) -> None:
        """Deletes all but a lease. Raises `OSError`."""
        for path in (self.data, self.journal, self.note):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Waiting:
    """A download that is not complete. Texts come from a note and may be anything."""

    files: Files
    name: str
    label: str
    source: str
    size: int | None  # bytes of the whole file
    n_bytes: int  # verified and kept
    disk_bytes: int  # that removing it gives back
    modified: float  # seconds since 1970
    held: bool  # a process fetches it at this moment


def listing(folder: Path) -> list[Waiting]:
    """All downloads that are not complete, the latest first. Raises `FileError`."""
    try:
        keys = {path.name.partition(".")[0] for path in folder.iterdir()}
    except FileNotFoundError:
        return []
    except OSError as e:
        raise disk_error("read", folder, e) from e
    found = [_waiting(Files(folder, key)) for key in keys if _KEY.fullmatch(key)]
    return sorted((each for each in found if each), key=lambda each: -each.modified)


def remove(waiting: Waiting) -> None:
    """Deletes a download that is not complete. Raises `FileError`, also while it is being
    fetched."""
    if lease.is_held(waiting.files.folder, waiting.files.key):
        raise FileError(
            f"{waiting.name} is being downloaded by another process",
            "End that one first: Ctrl-C keeps what has come.",
        )
    try:
        waiting.files.forget()
    except OSError as e:
        raise disk_error("delete", waiting.files.data, e) from e


def sweep(folder: Path) -> None:
    """Deletes temporary files that killed processes left while they wrote a lease or a note."""
    for path in folder.glob(f".*{TEMPORARY}"):
        with contextlib.suppress(OSError):
            if (
                _KEY.fullmatch(path.name[1:65])
                and time.time() - path.stat().st_mtime > _SWEPT_AFTER_S
                and is_stale(path, set(psutil.pids()))
            ):
                path.unlink()


def _waiting(files: Files) -> Waiting | None:
    disk_bytes, modified, there = 0, 0.0, False
    for path in (files.data, files.journal, files.note):
        with contextlib.suppress(OSError):
            stat = path.stat()
            disk_bytes += allocated(path)
            modified, there = max(modified, stat.st_mtime), True
    if not there:
        return None
    note = _read_note(files.note)
    contents = journal.load(files.journal) if files.data.exists() else None
    size = note.get("size")
    return Waiting(
        files=files,
        name=str(note.get("name") or files.key),
        label=str(note.get("label") or ""),
        source=str(note.get("source") or ""),
        size=contents.division.size if contents else _bytes(size),
        n_bytes=contents.n_bytes if contents else 0,
        disk_bytes=disk_bytes,
        modified=modified,
        held=lease.is_held(files.folder, files.key),
    )


def _bytes(size: Any) -> int | None:
    """A size that a note tells, if any file can have it."""
    return size if type(size) is int and 0 <= size < 2**63 else None


def allocated(path: Path) -> int:
    """Bytes that a file takes on its disk: less than its size where it has holes. 0 if missing."""
    try:
        stat = path.stat()
    except OSError:
        return 0
    blocks: int | None = getattr(stat, "st_blocks", None)
    return stat.st_size if blocks is None else blocks * 512


def _read_note(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
