"""OCI registries as a source: Ollama's, Docker's, or one's own.

A manifest names the layers of a model by their sha256, so whatever server sends them, only the
right bytes are taken. Protocol: https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import urlencode, urlsplit

from localllm.errors import DownloadError, FormatError
from localllm.store import manifest as manifests
from localllm.store.foreign.ollama import settings_of
from localllm.store.identifiers import is_loopback
from localllm.store.manifest import Layer, Manifest
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.settings import MAX_TEXT
from localllm.store.transfer.small import Small, get
from localllm.store.wanted import OciName

SOURCE = "oci"
#: Registries that people name by the site they see.
_API_HOSTS = {"ollama.com": "registry.ollama.ai", "docker.io": "registry-1.docker.io"}
_OTHERWISE = (
    "Public models need no login. For others, fetch the GGUF file with the registry's own tools, "
    "then: localllm import FILE"
)
_MAX_TOKEN_BYTES = 64 << 10
_JSON = ("params", "messages")  # roles of layers that hold JSON
_PAIR = re.compile(r'([a-zA-Z]+)="([^"\\]*)"')

Get = Callable[..., Small]


def resolve(wanted: OciName, *, get: Get = get) -> Offer:
    """What the registry has under the name. Raises `DownloadError`, `FormatError`,
    `UnsupportedError`."""
    registry = Registry(wanted, get)
    digest, manifest = registry.manifest(wanted.tag)
    models = manifest.of("model")
    config = _config(registry, manifest)
    notes: list[str] = []

    def read(layer: Layer) -> str:
        text = registry.text(layer)
        if layer.role in _JSON and text and not _is_json(text):
            notes.append(
                f"the {layer.role} that come with {wanted.ref} are no JSON, and were left out: "
                f"{text[:40]!a}"
            )
        return text

    settings = settings_of(manifest, read)
    return Offer(
        ref=wanted.ref,
        source=SOURCE,
        repository=f"{wanted.authority}/{wanted.repository}:{wanted.tag}",
        revision=f"sha256:{digest}",
        files=tuple(registry.file(layer, i, len(models)) for i, layer in enumerate(models)),
        quantization=config.get("quantization", ""),
        architecture=config.get("architecture", ""),
        licence=settings.licence.strip().split("\n")[0][:80],
        settings=settings,
        notes=tuple(notes),
    )


class Registry:
    """One repository of a registry, with the anonymous token that it may ask for."""

    def __init__(self, wanted: OciName, get: Get) -> None:
        host = _API_HOSTS.get(wanted.host, wanted.host)
        repository = wanted.repository
        if "/" not in repository and host in _API_HOSTS.values():
            repository = f"library/{repository}"
        authority = host if wanted.port is None else f"{host}:{wanted.port}"
        scheme = "http" if is_loopback(host) else "https"
        self.base = f"{scheme}://{authority}/v2/{repository}"
        self._repository, self._get, self._token = repository, get, ""
        self._challenge = ""

    def manifest(self, tag: str) -> tuple[str, Manifest]:
        """The manifest of a tag, and the sha256 of its bytes."""
        answer = self._ask(f"{self.base}/manifests/{tag}", manifests.ACCEPT, manifests.MAX_BYTES)
        try:
            return answer.sha256, manifests.parse(answer.body)
        except FormatError as e:
            raise FormatError(
                f"{urlsplit(self.base).netloc} sent a wrong manifest of {self._repository}: "
                f"{e.message}",
                e.hint,
            ) from e

    def text(self, layer: Layer) -> str:
        """A small layer as a text, checked against its digest."""
        if layer.size > MAX_TEXT:
            return ""
        answer = self._ask(self._blob(layer), "*/*", MAX_TEXT)
        if answer.sha256 != layer.sha256:
            raise DownloadError(
                f"the registry sent another layer than its manifest names: expected sha256 "
                f"{layer.sha256}, got {answer.sha256}"
            )
        return answer.body.decode("utf-8", "replace")

    def file(self, layer: Layer, i: int, n: int) -> RemoteFile:
        """A model layer as a file to fetch."""
        name = layer.title or f"sha256:{layer.sha256[:12]}" + (
            f" ({i + 1} of {n})" if n > 1 else ""
        )

        used = ""

        def locate() -> Location:
            nonlocal used
            if used and used == self._token:  # it did not serve, or not any more
                self._token = self._anonymous_token(self._challenge)
            used = self._token
            return Location(self._blob(layer), self._headers("application/octet-stream"))

        return RemoteFile(name, layer.size, layer.sha256, locate)

    def _blob(self, layer: Layer) -> str:
        return f"{self.base}/blobs/sha256:{layer.sha256}"

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _ask(self, url: str, accept: str, max_bytes: int) -> Small:
        answer = self._get(url, self._headers(accept), max_bytes)
        if answer.status == 401 and not self._token:
            self._challenge = answer.headers.get("www-authenticate", "")
            self._token = self._anonymous_token(self._challenge)
            answer = self._get(url, self._headers(accept), max_bytes)
        if answer.status != 200:
            raise self._refused(url, answer)
        return answer

    def _anonymous_token(self, challenge: str) -> str:
        """The token that anybody gets where the registry sends people for one. Nothing secret goes
        there, and what comes back goes to the registry alone."""
        scheme, _, rest = challenge.partition(" ")
        pairs = dict(_PAIR.findall(rest))
        try:
            realm = urlsplit(pairs.get("realm", ""))
        except ValueError:  # brackets without an address in them
            realm = urlsplit("")
        own = urlsplit(self.base)  # plain http only where the registry itself is, on this machine
        is_safe = realm.scheme == "https" or (
            realm.scheme == own.scheme == "http" and is_loopback(realm.hostname or "")
        )
        if scheme.lower() != "bearer" or not is_safe:
            raise DownloadError(
                f"the registry {own.netloc} wants a login, which is not supported",
                _OTHERWISE,
            )
        asked = {
            "service": pairs.get("service", ""),
            "scope": f"repository:{self._repository}:pull",
        }
        answer = self._get(
            f"{realm.geturl()}?{urlencode(asked)}", {"Accept": "application/json"}, _MAX_TOKEN_BYTES
        )
        try:
            document = json.loads(answer.body)
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if answer.status != 200 or not isinstance(token, str) or not _is_header(token):
            raise DownloadError(
                f"{realm.netloc} gives no token for {self._repository} (it answered "
                f"{answer.status})",
                f"The model may be private, or its name misspelled. {_OTHERWISE}",
            )
        return token

    def _refused(self, url: str, answer: Small) -> DownloadError:
        host = urlsplit(url).netloc
        if answer.status == 404:
            return DownloadError(
                f"{host} has no {url.partition('/v2/')[2].split('/manifests/')[0]} with this tag",
                "Check the name and the tag on the registry's site.",
            )
        if answer.status in (401, 403):
            return DownloadError(
                f"{host} refuses {self._repository} to people without a login ({answer.status})",
                _OTHERWISE,
            )
        hint = "Wait a while." if answer.status == 429 else "Try again later."
        return DownloadError(f"{host} answered {answer.status} for {url[:300]}", hint)


def _config(registry: Registry, manifest: Manifest) -> dict[str, str]:
    """Quantization and architecture from the configuration, which Ollama and Docker spell alike
    enough; {} where it says nothing."""
    if manifest.config is None or not 0 < manifest.config.size <= MAX_TEXT:
        return {}
    try:
        document = json.loads(registry.text(manifest.config))
    except (ValueError, RecursionError):
        return {}
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        document = {**document, **document["config"]}
    if not isinstance(document, dict):
        return {}
    keys = {
        "quantization": ("file_type", "quantization"),
        "architecture": ("model_family", "architecture"),
    }
    found: dict[str, str] = {}
    for name, spelled in keys.items():
        for key in spelled:
            value = document.get(key)
            if isinstance(value, str) and 0 < len(value) <= 40 and value.isprintable():
                found.setdefault(name, value)
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_header(token: str) -> bool:
    return 0 < len(token) <= 32768 and token.isascii() and token.isprintable() and " " not in token
