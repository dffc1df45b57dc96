"""The models that are here and those that could be, a row of plain data for each: what
`localllm list` and the terminal UI show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localllm import moments, paths
from localllm.errors import LocalLLMError
from localllm.store import catalog, quantization
from localllm.store.architecture import engine_of, read_architecture
from localllm.store.foreign import ForeignModel, stores
from localllm.store.index import Model
from localllm.store.record import Record


def rows(
    models: Sequence[Model],
    places: paths.Paths,
    known: Callable[[], catalog.Catalog],
    *,
    show_all: bool,
) -> list[dict[str, Any]]:
    """`models`, which are the store's, those of other programs, downloads that were interrupted,
    and if `show_all` what could be pulled. known: reads the catalogue, which takes a while."""
    found = [_installed(model) for model in models]
    found += [_foreign(model) for model in stores.models()]
    if downloads := _is_any(places.downloads):
        found += _unfinished(places)
    if show_all or downloads:  # else the catalogue has nothing to say
        found += _of_catalogue(known(), {row["name"] for row in found}, places, show_all)
    return found


def _of_catalogue(
    known: catalog.Catalog, here: set[str], places: paths.Paths, show_all: bool
) -> list[dict[str, Any]]:
    """What is not here: downloads from the package index that wait, and, if asked for, all else."""
    from localllm.store import download

    rows = []
    for entry in known:
        cached = download.cached_bytes(entry, places.downloads)
        if str(entry.ref) not in here and (cached or show_all):
            rows.append(_absent(entry, cached, download.cached_at(entry, places.downloads)))
    if show_all:
        here |= {row["name"] for row in rows}  # the package index comes before the Hub
        rows += [_on_the_hub(size) for size in known.sizes if str(size.ref) not in here]
    return rows


def _is_any(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is not None
    except OSError:
        return False


def _installed(model: Model) -> dict[str, Any]:
    record = model.record
    architecture = (record.architecture if record else "") or read_architecture(model.path)
    return {
        "name": str(model.ref),
        "state": "damaged" if model.damaged else "ready",
        "size": model.size,
        "quantization": _quantization(model),
        "architecture": architecture or None,
        "engine": engine_of(architecture),
        "digest": record.digest if record else None,
        "modified": moments.iso(model.modified),
        "path": str(model.path),
        "licence": record.licence if record else None,
        "source": _source(record),
        "used": moments.iso(model.used) if model.used else None,
        "elsewhere": model.elsewhere,
    }


def _quantization(model: Model) -> str | None:
    """As its record says; of a model that came without, as its file says."""
    if model.record is None:
        return None
    return model.record.quantization or _quantization_of(model.path)


def _quantization_of(path: Path) -> str | None:
    from localllm.store.inspect import GgufFile  # only now: with it comes the native module

    try:
        with GgufFile(path, header_only=True) as file:
            return file.quantization or None
    except LocalLLMError:
        return None


def _foreign(model: ForeignModel) -> dict[str, Any]:
    architecture = read_architecture(model.files[0])
    _, quant = quantization.at_end_of(model.ref.tag)
    return {
        "name": str(model.ref),
        "state": "ready",
        "size": model.size,
        "quantization": str(quant) if quant else _quantization_of(model.files[0]),
        "architecture": architecture or None,
        "engine": engine_of(architecture),
        "digest": f"sha256:{model.sha256}" if model.sha256 else None,
        "modified": moments.iso(model.modified),
        "path": str(model.files[0]),
        "licence": None,
        "source": model.program,
        "used": None,
        "elsewhere": True,
    }


def _unfinished(places: paths.Paths) -> list[dict[str, Any]]:
    """Downloads that are not complete: a row for each name."""
    from localllm.store.transfer import partials

    rows: dict[str, dict[str, Any]] = {}
    for waiting in partials.listing(places.downloads):
        name = waiting.label or waiting.name
        row = rows.setdefault(
            name,
            {
                "name": name,
                "state": "downloading" if waiting.held else "partial",
                "size": 0,
                "quantization": None,
                "architecture": None,
                "engine": None,
                "digest": None,
                "download_size": 0,
                "downloaded": 0,
                "licence": None,
                "source": waiting.source,
                "used": None,
                "modified": moments.iso(waiting.modified),  # the listing begins with the latest
            },
        )
        size = waiting.size
        known = None if size is None or row["size"] is None else row["size"] + size
        row["size"] = row["download_size"] = known
        row["downloaded"] += waiting.n_bytes
    return list(rows.values())


def _absent(entry: catalog.Entry, cached: int, modified: float) -> dict[str, Any]:
    return {
        "name": str(entry.ref),
        "state": "partial" if cached else "available",
        "size": entry.size,
        "quantization": entry.quantization,
        "architecture": entry.architecture,
        "engine": engine_of(entry.architecture),
        "digest": f"sha256:{entry.sha256}",
        "download_size": entry.download_size,
        "downloaded": cached,
        "licence": entry.licence,
        "source": "package index",
        "used": None,
        "modified": moments.iso(modified) if cached else None,
    }


def _on_the_hub(size: catalog.Size) -> dict[str, Any]:
    return {
        "name": str(size.ref),
        "state": "available",
        "size": None,
        "quantization": None,
        "architecture": size.architecture,
        "engine": engine_of(size.architecture),
        "digest": None,
        "download_size": None,
        "downloaded": 0,
        "licence": size.licence,
        "source": str(size.variants[0].repositories[0]),
        "used": None,
        "modified": None,
    }


def _source(record: Record | None) -> str | None:
    """Where a model came from, in a few words."""
    if record is None:
        return None
    if record.kind == "local":
        return record.source
    # Of the index the record has all packages; a file of the user's own has no kind either.
    return record.repository or record.source.partition(":")[0]
