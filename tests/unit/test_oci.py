"""The OCI source against a real registry (docker-registry), and against stand-in answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from localllm.errors import DownloadError, FormatError, UnsupportedError
from localllm.store import wanted
from localllm.store.offer import Offer
from localllm.store.sources import oci
from localllm.store.transfer.fetch import fetch
from localllm.store.transfer.small import Small
from localllm.store.wanted import OciName
from tests.stand_ins import oci_registry
from tests.stand_ins.oci_registry import OciRegistry

GGUF = b"GGUF" + bytes(range(256)) * 40
OLLAMA = "application/vnd.ollama.image."
LAYERS = [
    (OLLAMA + "model", GGUF),
    (OLLAMA + "template", b"<|im_start|>{{ .Prompt }}<|im_end|>"),
    (OLLAMA + "system", b"Be brief."),
    (OLLAMA + "params", b'{"temperature": 0.1, "stop": ["<|im_end|>"], "num_gpu": 1, "odd": 3}'),
    (OLLAMA + "messages", b'[{"role": "user", "content": "hi"}]'),
    (OLLAMA + "license", b"MIT License\n\nmore"),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciRegistry]:
    if not oci_registry.is_here():
        pytest.skip("docker-registry is not installed")
    with OciRegistry(tmp_path_factory.mktemp("registry")) as registry:
        registry.push(
            "library/tiny",
            "1b",
            LAYERS,
            config={"model_family": "llama", "file_type": "Q4_K_M"},
        )
        yield registry


def name(text: str) -> OciName:
    found = wanted.parse(text)
    assert isinstance(found, OciName)
    return found


def test_a_model_of_a_real_registry(registry: OciRegistry, tmp_path: Path) -> None:
    offer = oci.resolve(name(f"{registry.address}/library/tiny:1b"))
    assert (offer.source, offer.size) == ("oci", len(GGUF))
    assert (offer.architecture, offer.quantization) == ("llama", "Q4_K_M")
    assert offer.revision.startswith("sha256:") and offer.licence == "MIT License"
    assert offer.settings.system == "Be brief."
    assert offer.settings.parameters == {"temperature": 0.1, "stop": ("<|im_end|>",)}
    assert offer.settings.messages == (("user", "hi"),)
    final = tmp_path / "models" / "tiny.gguf"
    done = fetch(offer.files[0], final, tmp_path / "downloads", lambda progress: None)
    assert final.read_bytes() == GGUF
    assert done.sha256 == offer.files[0].sha256 == hashlib.sha256(GGUF).hexdigest()


def test_a_split_set_keeps_its_order(registry: OciRegistry) -> None:
    parts = [GGUF + bytes([i]) for i in range(3)]
    registry.push("me/split", "q", [("application/vnd.docker.ai.gguf.v3", p) for p in parts])
    offer = oci.resolve(name(f"{registry.address}/me/split:q"))
    assert [f.sha256 for f in offer.files] == [hashlib.sha256(p).hexdigest() for p in parts]
    assert offer.files[1].name.endswith("(2 of 3)")


def test_parameters_that_are_no_json_are_noted(registry: OciRegistry) -> None:
    layers = [LAYERS[0], (OLLAMA + "params", b"[[["), LAYERS[2]]
    registry.push("me/odd", "1b", layers)
    offer = oci.resolve(name(f"{registry.address}/me/odd:1b"))
    assert offer.settings.parameters == {} and offer.settings.system == "Be brief."
    (note,) = offer.notes
    assert "params" in note and "no JSON" in note and "'[[['" in note


def test_what_is_not_there(registry: OciRegistry) -> None:
    for text in ("library/tiny:2b", "library/none:1b"):
        with pytest.raises(DownloadError, match=r"has no .* with this tag"):
            oci.resolve(name(f"{registry.address}/{text}"))


def test_what_is_no_model(registry: OciRegistry) -> None:
    registry.push("me/image", "latest", [("application/vnd.docker.image.rootfs.diff.tar", b"x")])
    with pytest.raises(UnsupportedError, match="not a model"):
        oci.resolve(name(f"{registry.address}/me/image"))


class Answers:
    """A registry that answers from a table of (status, headers, body)."""

    def __init__(self, table: Mapping[str, list[tuple[int, dict[str, str], bytes]]]) -> None:
        self.table = {url: list(answers) for url, answers in table.items()}
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def __call__(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Small:
        self.asked.append((url, headers))
        answers = self.table[url.split("?")[0]]
        return Small(*(answers.pop(0) if len(answers) > 1 else answers[0]))


def manifest(*layers: tuple[str, bytes]) -> bytes:
    rows = [
        {"mediaType": kind, "size": len(data), "digest": f"sha256:{_hex(data)}"}
        for kind, data in layers
    ]
    return json.dumps({"schemaVersion": 2, "layers": rows}).encode()


def _hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


BASE = "https://registry.ollama.ai/v2/library/tiny"
REALM = "https://auth.ollama.ai/token"


def resolved(realm: str, token: Any = "abc", status: int = 200) -> tuple[Offer, Answers]:
    challenge = {"www-authenticate": f'Bearer realm="{realm}",service="r",scope="x"'}
    answers = Answers(
        {
            f"{BASE}/manifests/1b": [
                (401, challenge, b""),
                (200, {}, manifest((OLLAMA + "model", GGUF))),
            ],
            realm: [(status, {}, json.dumps({"token": token}).encode())],
        }
    )
    return oci.resolve(name("registry.ollama.ai/library/tiny:1b"), get=answers), answers


def test_an_anonymous_token_goes_to_the_registry_alone() -> None:
    offer, answers = resolved(REALM)
    first, asked, again = answers.asked
    assert asked[0].startswith(f"{REALM}?service=r&scope=repository%3Alibrary%2Ftiny%3Apull")
    assert "Authorization" not in first[1] and "Authorization" not in asked[1]
    assert again[1]["Authorization"] == "Bearer abc"
    place = offer.files[0].locate()
    assert place.url == f"{BASE}/blobs/sha256:{_hex(GGUF)}"
    assert place.headers["Authorization"] == "Bearer abc"


def test_a_token_that_no_longer_serves_is_renewed() -> None:
    offer, answers = resolved(REALM)
    file = offer.files[0]
    assert file.locate().headers["Authorization"] == "Bearer abc"
    answers.table[REALM] = [(200, {}, b'{"token": "fresh"}')]
    assert file.locate().headers["Authorization"] == "Bearer fresh"  # asked again: it had failed


@pytest.mark.parametrize(
    "realm", ["http://evil.example/token", "http://127.0.0.1:1/token", "file:///etc/passwd"]
)
def test_a_realm_that_is_not_encrypted_is_not_asked(realm: str) -> None:
    with pytest.raises(DownloadError, match="wants a login"):
        resolved(realm)


@pytest.mark.parametrize("token", [None, 3, "", "a\r\nHost: evil", "a b", "x" * 40000])
def test_a_token_that_is_none(token: Any) -> None:
    with pytest.raises(DownloadError, match="gives no token"):
        resolved(REALM, token)


def test_a_small_layer_that_was_changed() -> None:
    system = (OLLAMA + "system", b"Be kind.")
    answers = Answers(
        {
            f"{BASE}/manifests/1b": [(200, {}, manifest((OLLAMA + "model", GGUF), system))],
            f"{BASE}/blobs/sha256:{_hex(b'Be kind.')}": [(200, {}, b"Be evil.")],
        }
    )
    with pytest.raises(DownloadError, match="another layer than its manifest names"):
        oci.resolve(name("registry.ollama.ai/library/tiny:1b"), get=answers)


def test_sites_stand_for_their_registries() -> None:
    answers = Answers({f"{BASE}/manifests/1b": [(404, {}, b"")]})
    for text in ("ollama.com/library/tiny:1b", "ollama.com/tiny:1b"):
        with pytest.raises(DownloadError, match="with this tag"):
            oci.resolve(name(text), get=answers)


@pytest.mark.parametrize("status", [401, 403])
def test_a_model_of_somebody_else_says_what_to_do(status: int) -> None:
    challenge = {"www-authenticate": f'Bearer realm="{REALM}",service="r",scope="x"'}
    answers = Answers(
        {
            f"{BASE}/manifests/1b": [(401, challenge, b""), (status, {}, b"")],
            REALM: [(200, {}, b'{"token": "abc"}')],
        }
    )
    with pytest.raises(DownloadError, match="refuses library/tiny to people") as caught:
        oci.resolve(name("registry.ollama.ai/library/tiny:1b"), get=answers)
    assert "localllm import" in (caught.value.hint or "")


def test_a_wrong_manifest_names_its_host() -> None:
    layer = {"mediaType": OLLAMA + "model", "size": 9, "digest": "md5:12"}
    data = json.dumps({"layers": [layer]}).encode()
    answers = Answers({f"{BASE}/manifests/1b": [(200, {}, data)]})
    with pytest.raises(FormatError, match=r"registry\.ollama\.ai sent .*'md5:12' is no digest"):
        oci.resolve(name("registry.ollama.ai/library/tiny:1b"), get=answers)
