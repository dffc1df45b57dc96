"""A GGUF file or a folder of this machine: referenced where it lies, never copied or changed."""

from __future__ import annotations

import re
from pathlib import Path

from localllm.errors import ArgumentError, FileError
from localllm.store import ref
from localllm.store.listing import Group, group
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.ref import SUFFIX, Ref

SOURCE = "local"


def resolve(path: Path, name: Ref | None = None) -> Offer:
    """The model of a file, of a part of a split set, or of a folder that holds one model. name:
    what to call it in the store; None: after the file. Raises `FileError`, `ArgumentError`."""
    path = path.absolute()
    try:
        folder = path if path.is_dir() else path.parent
        names = [each.name for each in folder.iterdir() if each.is_file()]
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror or e}") from e
    listing = group(names)
    if path.is_dir():
        model = _only(path, listing.models)
    else:
        if not path.is_file():
            raise FileError(f"there is no file {path}", "Check the path.")
        mine = [each for each in listing.models if path.name in each.files]
        if not mine and any(path.name.startswith(label) for label in listing.incomplete):
            raise FileError(
                f"{path} is a part of a split set, and other parts are not beside it",
                "All parts of a split model must lie in one folder.",
            )
        model = mine[0] if mine else Group(path.stem, (path.name,), None)
    files = tuple(folder / file for file in model.files)
    return Offer(
        ref=name or ref_of(model),
        source=SOURCE,
        repository=str(folder),
        revision="",
        files=tuple(_file(file) for file in files),
        quantization=str(model.quantization) if model.quantization else "",
        in_place=files,
    )


def ref_of(model: Group) -> Ref:
    """A name after the file's: `Llama-3.2-1B-Q4_K_M` is `llama-3.2-1b:q4_k_m`."""
    stem, tag = model.label.lower(), ref.DEFAULT_TAG
    if model.quantization is not None:
        tag = model.quantization.tag
        at = stem.rfind(model.quantization.name.lower())
        stem = stem[:at] if at > 0 else stem
    stem = re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9._-]+", "-", stem)).strip("._-")[: ref.MAX_PART]
    return ref.parse(f"{stem.strip('._-') or 'model'}:{tag}")


def _only(folder: Path, models: tuple[Group, ...]) -> Group:
    if len(models) == 1:
        return models[0]
    if not models:
        raise FileError(f"{folder} holds no GGUF file", f"A model is a file that ends in {SUFFIX}.")
    shown = ", ".join(model.files[0] for model in models[:5])
    raise ArgumentError(f"{folder} holds {len(models)} models", f"Name one of them: {shown}")


def _file(path: Path) -> RemoteFile:
    def locate() -> Location:
        raise FileError(f"{path} is on this machine: nothing is fetched")

    return RemoteFile(path.name, path.stat().st_size, None, locate)
