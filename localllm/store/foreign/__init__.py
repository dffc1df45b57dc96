"""Models in the stores of other programs on this machine: listed and run where they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import ArgumentError
from localllm.store.listing import group
from localllm.store.ref import MAX_PART, SUFFIX, Ref
from localllm.store.ref import parse as parse_ref
from localllm.store.settings import NOTHING_SET, Settings

_MOST_FILES = 1000  # of a folder; one with more is no folder of models


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


def grouped(folder: Path, base: Ref, program: str) -> Iterator[ForeignModel]:
    """The models that the GGUF files in a folder and below make up, called `base` with their
    quantization as the tag, or else with their file's name."""
    try:
        names = [
            path.relative_to(folder).as_posix()
            for path in sorted(folder.rglob("*"))
            if path.suffix.lower() == SUFFIX and path.is_file()
        ]
        models = group(names).models if len(names) <= _MOST_FILES else ()
        for model in models:
            files = tuple(folder / name for name in model.files)
            stats = [file.stat() for file in files]
            name = model.quantization.tag if model.quantization else _tag(model.label)
            try:
                ref = parse_ref(f"{base.name}:{name}")
            except ArgumentError:
                continue
            size = sum(stat.st_size for stat in stats)
            newest = max(stat.st_mtime for stat in stats)
            yield ForeignModel(ref, program, files, size, newest, NOTHING_SET)
    except OSError:
        return  # another program's business


def _tag(label: str) -> str:
    """A tag after a file's name."""
    stem = re.sub(r"[^a-z0-9._-]+", "-", label.rpartition("/")[2].lower())
    return re.sub(r"\.{2,}", ".", stem).strip("._-")[:MAX_PART].strip("._-") or "file"
