"""From a model file to a `Service`, and from a service to the models of a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localllm.engine.memory_plan import N_SERVED
from localllm.engine.open import OpenOptions, beside_template, open_parts
from localllm.engine.paged import PagedEngine
from localllm.engine.request import Service
from localllm.engine.serial import SerialService
from localllm.engine.service import NativeService

__all__ = ["ModelFile", "OpenOptions", "open_service"]

Notice = Callable[[str], None]


@dataclass(frozen=True)
class ModelFile:
    """A file, and what goes with it. beside: a template that came with the model."""

    path: Path
    name: str
    digest: str = ""
    beside: str = ""


def open_service(
    file: ModelFile,
    options: OpenOptions,
    *,
    max_queue: int,
    n_sequences: int = N_SERVED,
    progress: Callable[[float], None] | None = None,
    notice: Notice | None = None,
) -> Service:
    """Loads a model for many requests, n_sequences of them at once in our own engine. Raises what
    `open_parts` raises."""
    if options.template is None and file.beside:
        choice = beside_template(file.path, file.beside)
        options = replace(options, template=choice.template)
        if choice.note and notice is not None:
            notice(choice.note)
    parts = open_parts(
        file.path, options, progress=progress, notice=notice, n_sequences=n_sequences
    )
    try:
        kind = NativeService if isinstance(parts.engine, PagedEngine) else SerialService
        return kind(parts, file.name, file.digest or parts.digest, max_queue)
    except BaseException:
        parts.engine.close()
        raise
