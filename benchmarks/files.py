"""The model files that the benchmarks run: two real ones from the catalogue, and synthetic ones."""

from __future__ import annotations

from pathlib import Path

from benchmarks import synthetic
from localllm import paths
from localllm.errors import ArgumentError
from localllm.store import catalog, download
from localllm.store.ref import parse

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
REAL = ("smollm2:135m", "gemma3:270m")


def check(name: str) -> None:
    """Raises `LocalLLMError` for a name that `path_of` could not know."""
    if name.startswith("synthetic:"):
        parts = name.split(":")
        if len(parts) != 3 or parts[1] not in synthetic.SHAPES:
            shapes = ", ".join(synthetic.SHAPES)
            raise ArgumentError(f"{name!r} is no synthetic:SHAPE:MIX; the shapes are {shapes}")
        try:
            synthetic.mix_types(parts[2])
        except ValueError as e:
            raise ArgumentError(str(e)) from None
    elif name.endswith(".gguf") or "/" in name:
        if not Path(name).is_file():
            raise ArgumentError(f"there is no file {name!r}")
    else:
        catalog.load().get(parse(name))


def path_of(name: str) -> Path:
    """A file by name: a catalogue name (pulled if it is not in the store), a synthetic one such as
    ``synthetic:1b:Q4_K_M``, or a path. Raises what `localllm.store.download.pull` raises."""
    if name.startswith("synthetic:"):
        _, shape, mix = name.split(":")
        return synthetic.ensure(CACHE, shape, mix)
    if Path(name).is_file():
        return Path(name)
    entry = catalog.load().get(parse(name))
    return download.pull(entry, paths.current(), lambda progress: None).path
