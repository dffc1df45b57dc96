"""The cache that all programs share which use the Hub's own client: its files are used where they
lie. Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache

    models--user--repo/refs/main                  holds the commit
    models--user--repo/snapshots/COMMIT/file      a link to
    models--user--repo/blobs/SHA256               the content, named by its sha256
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localllm.errors import ArgumentError
from localllm.store.identifiers import SHA256, Repository, Revision


@dataclass(frozen=True)
class CachedFile:
    """A file of a snapshot."""

    name: str  # in the repository
    path: Path
    size: int  # bytes
    sha256: str | None  # None where the cache could make no links, or the file is no large one


@dataclass(frozen=True)
class Snapshot:
    """What the cache has of one commit."""

    commit: str
    files: tuple[CachedFile, ...]


class HubCache:
    """The cache in a folder, which need not exist. Nothing in it is ever changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def snapshot(self, repository: Repository, revision: Revision) -> Snapshot | None:
        """What is there of a branch, a tag or a commit, if anything is."""
        base = self._base(repository)
        commit = str(revision)
        if not revision.is_commit:
            try:
                commit = (base / "refs" / str(revision)).read_text("ascii").strip()
                if not Revision(commit).is_commit:
                    return None
            except (OSError, ValueError, ArgumentError):
                return None
        files = _files(base / "snapshots" / commit)
        return Snapshot(commit, files) if files else None

    def find(self, repository: Repository, name: str, size: int, sha256: str) -> Path | None:
        """A file of exactly this content under this name, in any snapshot: only there do the files
        of a split set lie side by side."""
        try:
            snapshots = sorted((self._base(repository) / "snapshots").iterdir())
        except OSError:
            return None
        for snapshot in snapshots:
            file = _file(snapshot, snapshot / name)
            if file is not None and (file.size, file.sha256) == (size, sha256):
                return file.path
        return None

    def _base(self, repository: Repository) -> Path:
        return self.folder / f"models--{repository.owner}--{repository.name}"


def _files(snapshot: Path) -> tuple[CachedFile, ...]:
    found = (_file(snapshot, path) for path in sorted(snapshot.rglob("*")))
    return tuple(file for file in found if file is not None)


def _file(snapshot: Path, path: Path) -> CachedFile | None:
    """A file that lies in the snapshot, and whose link leads to the repository's blobs."""
    try:
        if not path.is_file() or ".." in path.relative_to(snapshot).parts:
            return None
        target = path.resolve(strict=True)
        size = target.stat().st_size
    except (OSError, ValueError):
        return None
    is_blob = target.parent == (snapshot.parent.parent / "blobs").resolve()
    sha256 = target.name if is_blob and SHA256.fullmatch(target.name) else None
    return CachedFile(path.relative_to(snapshot).as_posix(), path, size, sha256)
