"""LM Studio's store: `publisher/repository/file.gguf`, plain files under their own names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from localllm.errors import ArgumentError
from localllm.store.foreign import ForeignModel, grouped
from localllm.store.ref import parse

PROGRAM = "LM Studio"
_POINTER = ".lmstudio-home-pointer"  # a file in the home folder that holds the path of its folder
_LONGEST_PATH = 4096
_MOST_FOLDERS = 10_000


def folders(env: Mapping[str, str], home: Path) -> list[Path]:
    """Where its models are: the present folder and the one of older versions."""
    base = home / ".lmstudio"
    try:
        with (home / _POINTER).open("rb") as file:
            text = file.read(_LONGEST_PATH).decode("utf-8").strip()
        if text and "\0" not in text and Path(text).is_absolute():
            base = Path(text)
    except (OSError, UnicodeDecodeError):
        pass
    return [base / "models", home / ".cache" / "lm-studio" / "models"]


def models(folder: Path) -> Iterator[ForeignModel]:
    """The models of a store whose files are all there."""
    for n, path in enumerate(_repositories(folder)):
        if n == _MOST_FOLDERS:
            return
        try:
            base = parse(f"lm-studio/{path.parent.name}/{path.name}")
        except ArgumentError:
            continue  # a name that nobody could type here
        yield from grouped(path, base, PROGRAM)


def _repositories(folder: Path) -> Iterator[Path]:
    for publisher in _folders(folder):
        yield from _folders(publisher)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(each.path) for each in os.scandir(folder) if each.is_dir())
    except OSError:
        return []
