from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.errors import FormatError, UnsupportedError
from localllm.store.manifest import MAX_BYTES, MAX_LAYERS, Layer, digest_hex, parse

HEX = "0123456789abcdef" * 4


def layer(kind: str, size: Any = 5, digest: Any = f"sha256:{HEX}", **more: Any) -> dict[str, Any]:
    return {"mediaType": kind, "size": size, "digest": digest, **more}


def written(*layers: Any, **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "layers": list(layers), **more}).encode()


def test_layers_of_ollama_docker_and_plain_artifacts() -> None:
    title = {"annotations": {"org.opencontainers.image.title": "a.Q4_K_M.gguf"}}
    manifest = parse(
        written(
            layer("application/vnd.ollama.image.model"),
            layer("application/vnd.docker.ai.gguf.v3; a=b", 6),
            layer("application/octet-stream", 7, **title),
            layer("application/vnd.ollama.image.system", 0),
            layer("text/plain"),
        )
    )
    assert [each.role for each in manifest.layers] == ["model", "model", "model", "system", ""]
    assert manifest.of("model")[2] == Layer("model", HEX, 7, "a.Q4_K_M.gguf")


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"", FormatError, "no JSON"),
        (b"[" * 100_000, FormatError, "no JSON"),
        (b"[]", FormatError, "no JSON object"),
        (b"{}", FormatError, "layers"),
        (b" " * (MAX_BYTES + 1), FormatError, "at most 4,194,304"),
        (written(), FormatError, "1 to 1000 layers"),
        (written(*[layer("x")] * (MAX_LAYERS + 1)), FormatError, "1 to 1000 layers"),
        (written(3), FormatError, "layer 0"),
        (written(layer("x", -1)), FormatError, "size '-1'"),
        (written(layer("x", True)), FormatError, "size 'True'"),
        (written(layer("x", 1 << 60)), FormatError, "size"),
        (written(layer("x", 1, f"sha256:../{HEX[3:]}")), FormatError, "no digest"),
        (written(layer("x", 1, f"sha256:{HEX}\n")), FormatError, "no digest"),
        (written(layer("x", 1, f"SHA256:{HEX}")), FormatError, "no digest"),
        (written(layer("x", 1, None)), FormatError, "no digest"),
        (written(layer("application/vnd.ollama.image.model", 0)), FormatError, "empty"),
        (written(layer("text/plain")), UnsupportedError, "not a model"),
        (written(layer("application/vnd.ollama.image.tensor")), UnsupportedError, "tensors"),
        (
            written(layer("application/vnd.ollama.image.adapter")),
            UnsupportedError,
            "adapters are not supported",
        ),
        (json.dumps({"manifests": []}).encode(), UnsupportedError, "several platforms"),
    ],
)
def test_what_is_refused(data: bytes, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says) as e:
        parse(data)
    assert len(str(e.value)) < 300


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.just(f"sha256:{HEX}"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["mediaType", "size", "digest", "layers", "annotations", "manifests"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(_JSON | st.fixed_dictionaries({"layers": st.lists(_JSON, max_size=4)}))
def test_any_json_ends_in_a_clear_way(document: Any) -> None:
    try:
        parse(json.dumps(document).encode())
    except (FormatError, UnsupportedError) as e:
        assert e.message


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80) | st.integers() | st.none())
def test_a_digest_is_a_type(text: object) -> None:
    with pytest.raises(FormatError):
        digest_hex(text)
