"""Models in the stores of other programs on this machine: listed and run where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localllm.store.ref import Ref
from localllm.store.settings import Settings


@dataclass(frozen=True)
class ForeignModel:
    """A model of another program; nothing of it is ever changed or deleted."""

    ref: Ref
    program: str  # "Ollama", "LM Studio", "Hugging Face"
    files: tuple[Path, ...]  # in the order of the split
    size: int  # bytes of all files
    modified: float  # seconds since 1970
    settings: Settings
    sha256: str = ""  # of a single file, where its store says so
