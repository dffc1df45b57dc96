"""Ollama's store: manifests under readable names, files under their hashes.

Layout: `manifests/<host>/<namespace>/<model>/<tag>` is a manifest of a registry,
`blobs/sha256-<hex>` holds its layers.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, LocalLLMError
from localllm.store import manifest as manifests
from localllm.store.foreign import ForeignModel
from localllm.store.manifest import Layer, Manifest
from localllm.store.ref import Ref, parse
from localllm.store.settings import MAX_TEXT, WITHOUT_EFFECT, Settings, from_document, parameter

PROGRAM = "Ollama"
FOLDER_VARIABLE = "OLLAMA_MODELS"
_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the system service on Linux
_DEPTH = 4
_MOST_MODELS = 10_000


def folders(env: Mapping[str, str], home: Path) -> list[Path]:
    """Where the models of Ollama are, as its own settings say."""
    if chosen := env.get(FOLDER_VARIABLE):
        return [Path(chosen)]
    own = home / ".ollama" / "models"
    return [own, _SERVICE] if sys.platform == "linux" else [own]


def models(folder: Path) -> Iterator[ForeignModel]:
    """The models of a store whose files are all there. What cannot be read is left out: it is
    another program's business."""
    for n, path in enumerate(_tags(folder / "manifests")):
        if n == _MOST_MODELS:
            return
        try:
            model = _model(folder, path)
        except (LocalLLMError, OSError, ValueError):
            continue
        if model is not None:
            yield model


def _tags(root: Path) -> Iterator[Path]:
    """Files exactly four folders deep."""

    def walk(folder: Path, depth: int) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if depth < _DEPTH and entry.is_dir():
                yield from walk(Path(entry.path), depth + 1)
            elif depth == _DEPTH and entry.is_file():
                yield Path(entry.path)

    return walk(root, 1)


def _model(folder: Path, path: Path) -> ForeignModel | None:
    with path.open("rb") as file:
        found = manifests.parse(file.read(manifests.MAX_BYTES + 1))
    files = tuple(_blob(folder, layer) for layer in found.of("model"))
    sizes = [file.stat().st_size for file in files]
    if sizes != [layer.size for layer in found.of("model")]:
        return None  # a download of Ollama that has not ended
    host, namespace, name, tag = path.parts[-_DEPTH:]
    return ForeignModel(
        ref=name_of(host, namespace, name, tag),
        program=PROGRAM,
        files=files,
        size=sum(sizes),
        modified=path.stat().st_mtime,
        settings=settings_of(found, lambda layer: _text(folder, layer)),
        sha256=found.of("model")[0].sha256 if len(files) == 1 else "",
    )


def name_of(host: str, namespace: str, name: str, tag: str) -> Ref:
    """`ollama/llama3:8b`; what is not of Ollama's own library has its namespace and host as well.
    Raises `ArgumentError` for names that would not be valid here."""
    parts = ["ollama", host, namespace, name]
    if host == _HOST:
        parts.remove(host)
        if namespace == _NAMESPACE:
            parts.remove(namespace)
    return parse(f"{'/'.join(parts)}:{tag}")


def settings_of(manifest: Manifest, read: Callable[[Layer], str]) -> Settings:
    """What the small layers of a manifest say. `read` gives a layer as a text. Parameters that mean
    nothing here, or are out of range, are left out."""

    def text(role: str) -> str:
        return "\n\n".join(filter(None, map(read, manifest.of(role))))

    document = {
        "parameters": _parameters(text("params")),
        "messages": _list(text("messages")),
        "template": text("template"),
        "system": text("system"),
        "licence": text("license"),
    }
    while True:
        try:
            return from_document(document)
        except ValueError as e:
            # One bad text costs itself, not the model.
            name = str(e).removeprefix("settings.").split()[0].split(":")[0]
            document.pop(name if name in document else "messages")


def _parameters(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, Any] = {}
    for name, value in document.items() if isinstance(document, dict) else ():
        if name not in WITHOUT_EFFECT:
            with contextlib.suppress(ArgumentError):
                key, checked = parameter(name, value)
                found[key] = checked
    return found


def _list(text: str) -> list[Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return document if isinstance(document, list) else []


def _blob(folder: Path, layer: Layer) -> Path:
    return folder / "blobs" / f"sha256-{layer.sha256}"


def _text(folder: Path, layer: Layer) -> str:
    if layer.size > MAX_TEXT:
        return ""
    with _blob(folder, layer).open("rb") as file:
        return file.read(MAX_TEXT).decode("utf-8", "replace")
