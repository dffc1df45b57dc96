"""Manifests of OCI registries that hold models: Ollama's, Docker's, and plain artifacts.

A manifest is JSON from a stranger: every digest has the form of one, every size is counted, and
nothing in it becomes a path. Format: https://github.com/opencontainers/image-spec/blob/main/manifest.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localllm.errors import FormatError, UnsupportedError

MAX_BYTES = 4 << 20
MAX_LAYERS = 1000
MAX_FILE_BYTES = 1 << 50
#: What a registry is asked for: Docker's type first, as some registries know no other.
ACCEPT = (
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.manifest.v1+json"
)

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ROLES = {
    "application/vnd.ollama.image.model": "model",
    "application/vnd.docker.ai.gguf.v3": "model",
    "application/vnd.docker.ai.model.file.v1+gguf": "model",
    "application/vnd.ollama.image.template": "template",
    "application/vnd.docker.ai.chat.template.jinja": "template",
    "application/vnd.ollama.image.system": "system",
    "application/vnd.ollama.image.params": "params",
    "application/vnd.ollama.image.messages": "messages",
    "application/vnd.ollama.image.license": "license",
    "application/vnd.docker.ai.license": "license",
    "application/vnd.ollama.image.adapter": "adapter",
    "application/vnd.ollama.image.projector": "projector",
    "application/vnd.docker.ai.mmproj": "projector",
    "application/vnd.ollama.image.tensor": "tensor",
    "application/vnd.docker.ai.safetensors": "tensor",
}
_TITLE = "org.opencontainers.image.title"


@dataclass(frozen=True)
class Layer:
    """role: a value of the table above, "" for a layer that means nothing here."""

    role: str
    sha256: str
    size: int  # bytes
    title: str  # a file name, or ""; never joined to a path


@dataclass(frozen=True)
class Manifest:
    """The layers of one model, models in the order in which a split set is numbered."""

    layers: tuple[Layer, ...]
    config: Layer | None = None  # a JSON document on the model

    def of(self, role: str) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.role == role)


def digest_hex(text: object) -> str:
    """The 64 hex digits of `sha256:...`. Raises `FormatError` for anything else."""
    match = _DIGEST.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FormatError(
            f"{str(text)[:80]!a} is no digest: sha256: and 64 hex digits are expected"
        )
    return match[1]


def parse(data: bytes) -> Manifest:
    """Reads a manifest. Raises `FormatError` where it breaks the rules, `UnsupportedError` where it
    holds no model that runs here."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"the manifest has {len(data):,} bytes, at most {MAX_BYTES:,} are read")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"the manifest is no JSON: {str(e)[:100]}") from None
    if not isinstance(document, Mapping):
        raise FormatError("the manifest is no JSON object")
    if "manifests" in document and "layers" not in document:
        raise UnsupportedError(
            "the registry answers with a list of images for several platforms, not with a model"
        )
    layers = document.get("layers")
    if not isinstance(layers, list) or not 1 <= len(layers) <= MAX_LAYERS:
        raise FormatError(f"the manifest must have 1 to {MAX_LAYERS} layers")
    config = document.get("config")
    found = Manifest(
        tuple(_layer(f"layer {i}", layer) for i, layer in enumerate(layers)),
        None if config is None else _layer("the config", config),
    )
    _require_model(found)
    return found


def _layer(which: str, layer: Any) -> Layer:
    if not isinstance(layer, Mapping):
        raise FormatError(f"{which} of the manifest is no JSON object")
    size = layer.get("size")
    if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
        raise FormatError(f"{which} of the manifest has the size {str(size)[:40]!a}")
    kind = layer.get("mediaType")
    kind = kind.split(";")[0].strip() if isinstance(kind, str) else ""
    notes = layer.get("annotations")
    title = notes.get(_TITLE) if isinstance(notes, Mapping) else None
    title = title if isinstance(title, str) and len(title) <= 255 else ""
    role = _ROLES.get(kind, "")
    if not role and title.lower().endswith(".gguf"):
        role = "model"
    return Layer(role, digest_hex(layer.get("digest")), size, title)


def _require_model(manifest: Manifest) -> None:
    if manifest.of("adapter"):
        raise UnsupportedError(
            "the model is an adapter over another one: adapters are not supported yet",
            "Look for the merged model.",
        )
    models = manifest.of("model")
    if not models and manifest.of("tensor"):
        raise UnsupportedError(
            "the registry has this model as separate tensors, not as a GGUF file",
            "Look for a GGUF build of it: localllm search NAME",
        )
    if not models:
        raise UnsupportedError("the registry holds something else under this name, not a model")
    if any(layer.size == 0 for layer in models):
        raise FormatError("the manifest names an empty model file")
