"""The cache that programs share which use the Hub's own client, as a store: its GGUF files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from localllm.errors import ArgumentError
from localllm.store.foreign import ForeignModel, grouped
from localllm.store.ref import parse

PROGRAM = "Hugging Face"
_PREFIX = "models--"


def folder(env: Mapping[str, str], home: Path) -> Path:
    """Where the client keeps its cache, by its own rules."""
    if chosen := env.get("HF_HUB_CACHE"):
        return Path(chosen)
    base = env.get("HF_HOME")
    if base is None:
        base = str(Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface")
    return Path(base) / "hub"


def models(folder: Path) -> Iterator[ForeignModel]:
    """The models of a cache: of each repository the snapshot that is the newest."""
    try:
        repositories = sorted(folder.glob(f"{_PREFIX}*"))
    except OSError:
        return
    for repository in repositories:
        owner, _, name = repository.name.removeprefix(_PREFIX).partition("--")
        try:
            base = parse(f"hf.co/{owner}/{name}")
            snapshots = [path for path in (repository / "snapshots").iterdir() if path.is_dir()]
        except (OSError, ArgumentError):
            continue
        snapshots.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        seen = set()
        for snapshot in snapshots:
            for model in grouped(snapshot, base, PROGRAM):
                if model.ref not in seen:
                    seen.add(model.ref)
                    yield model
