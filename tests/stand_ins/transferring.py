"""Transfers with short waits and small chunks, for tests."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from localllm.store.offer import Location, RemoteFile
from localllm.store.transfer.fetch import Fetched, fetch
from localllm.store.transfer.progress import Progress, Report
from localllm.store.transfer.settings import KIB, Settings

FAST = Settings(
    connect_s=5,
    stall_s=20,  # a loaded machine sends nothing for a second, too
    tries=6,
    first_wait_s=0.01,
    longest_wait_s=0.05,
    longest_asked_s=3,
    chunk_bytes=16 * KIB,
    span_bytes=64 * KIB,
    beat_s=0.2,
    stale_s=4,
    poll_s=0.01,
)


def faster(**more: object) -> Settings:
    """FAST, but for what is named."""
    return dataclasses.replace(FAST, **more)  # type: ignore[arg-type]


def remote(url: str, content: bytes, *, hashed: bool = True, sized: bool = True) -> RemoteFile:
    """The file at an address as a source would offer it."""
    return RemoteFile(
        name=url.rsplit("/", 1)[-1],
        size=len(content) if sized else None,
        sha256=hashlib.sha256(content).hexdigest() if hashed else None,
        locate=lambda: Location(url),
    )


class Place:
    """A folder for models and one for what is not complete, and what was reported."""

    def __init__(self, base: Path, settings: Settings = FAST) -> None:
        self.models, self.downloads = base / "models", base / "downloads"
        self.settings = settings
        self.reported: list[Progress] = []

    def fetch(
        self, file: RemoteFile, name: str = "model.gguf", report: Report | None = None
    ) -> Fetched:
        final = self.models / name
        return fetch(
            file, final, self.downloads, report or self.reported.append, settings=self.settings
        )

    def states(self) -> str:
        """All states that were reported, one a line."""
        return "\n".join(dict.fromkeys(progress.state for progress in self.reported))

    def left(self) -> set[str]:
        """Kinds of files in the download folder."""
        return {path.suffix for path in self.downloads.iterdir()}

    def only(self, suffix: str) -> Path:
        """The one file of a kind in the download folder."""
        (path,) = self.downloads.glob(f"*{suffix}")
        return path
