"""What a model of one's own is made of: the files and the settings behind a name or a path."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from localllm.cli.finding import Found
from localllm.errors import UnsupportedError
from localllm.store import copies
from localllm.store.copies import Origin
from localllm.store.offer import Offer
from localllm.store.sources import local


def origin_of(found: Found) -> Origin:
    """The origin of a model that was found. Raises `FileError` for one that is not whole."""
    if found.model is not None:
        return copies.origin_of(found.model)
    if found.foreign is not None:
        files, sha256 = found.foreign.files, found.foreign.sha256
        hashes = (sha256,) if len(files) == 1 else ("",) * len(files)
        # Linked, the model stays when the other program deletes its own name of it.
        return described(
            Origin(found.label, files, owned=True, sha256=hashes, settings=found.foreign.settings)
        )
    return of_offer(local.resolve(found.path))


def of_path(path: Path) -> Origin:
    """The origin of a file, of a part of a split set or of a folder with one model. Raises
    `FileError`, `ArgumentError`, `FormatError`."""
    return of_offer(local.resolve(path))


def of_offer(offer: Offer) -> Origin:
    files = offer.in_place
    return described(
        Origin(str(files[0]), files, owned=False, sha256=("",) * len(files)),
        quantization=offer.quantization,
    )


def described(origin: Origin, quantization: str = "") -> Origin:
    """The same with what the file's header says. Raises the errors of `GgufFile`."""
    from localllm.store.inspect import GgufFile  # numpy and the native reader

    with contextlib.suppress(UnsupportedError), GgufFile(origin.files[0]) as file:
        licence = file.metadata.get("general.license")
        return dataclasses.replace(
            origin,
            architecture=file.architecture,
            quantization=quantization or file.quantization,
            licence=licence[:200] if isinstance(licence, str) else "",
        )
    return origin
