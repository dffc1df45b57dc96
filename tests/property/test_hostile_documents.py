"""Documents of strangers: whatever bytes or JSON stand in them, reading gives a value or an error
of ours, with a message that a terminal can show."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.hf_api import ModelInfo
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localllm.errors import LocalLLMError
from localllm.store import manifest, modelfile, wanted
from localllm.store.answers import Answers
from localllm.store.foreign import ollama
from localllm.store.identifiers import Repository, Revision
from localllm.store.index import Store
from localllm.store.lockfile import Lockfile
from localllm.store.ref import Ref
from localllm.store.sources import oci, peer
from localllm.store.sources.hub import Hub
from localllm.store.transfer.small import Small
from localllm.store.wanted import OciName, PeerName

SHA256 = "0" * 64
LAYER = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{SHA256}", "size": 9}
SETTINGS = {
    "template": "{{ x }}",
    "system": "Be brief.",
    "licence": "MIT",
    "parameters": {"temperature": 0.5, "stop": ["a"], "num_ctx": 9, "logit_bias": [[1, 2.0]],
                   "samplers": ["top_k"], "seed": 1, "ignore_eos": True},
    "messages": [["user", "a"], {"role": "assistant", "content": "b"}],
}  # fmt: skip
MANIFEST = {
    "config": {"digest": f"sha256:{SHA256}", "size": 2},
    "layers": [
        {**LAYER, "annotations": {"org.opencontainers.image.title": "m.gguf"}},
        *({**LAYER, "mediaType": f"application/vnd.ollama.image.{kind}"}
          for kind in ("template", "params", "messages", "license")),
    ],
}  # fmt: skip
LISTING = {
    "id": "u/r",
    "sha": "0" * 40,
    "cardData": {"license": "other", "license_name": "mine"},
    "gguf": {"total": 7, "architecture": "llama", "context_length": 9},
    "siblings": [
        {"rfilename": "m-Q4_K_M.gguf", "size": 9, "blobId": "x",
         "lfs": {"size": 9, "sha256": SHA256, "pointerSize": 1}},
        {"rfilename": "README.md"},
    ],
}  # fmt: skip
FOUND = [{"id": "u/r", "downloads": 1, "likes": 2, "gated": "auto", "lastModified": "x"}]
RECORD = {
    "version": 2, "size": 9, "sha256": SHA256, "source": "s", "added": "a", "architecture": "l",
    "quantization": "Q8_0", "licence": "MIT", "kind": "hub", "repository": "u/r", "revision": "v",
    "files": [{"name": "m.gguf", "size": 9, "sha256": SHA256, "path": "/m.gguf"}],
    "settings": SETTINGS,
}  # fmt: skip
PIN = {"source": "hub", "repository": "u/r", "revision": "v", "quantization": "Q8_0",
       "files": [{"name": "m.gguf", "size": 9, "sha256": SHA256}]}  # fmt: skip
LOCK = {"version": 1, "names": {"m": "m:1b"}, "models": {"m:1b": PIN}}
ANSWER = {
    "version": 1, "model": "m", "title": "t", "created": "c", "token_ids": [1], "text": "x",
    "reasoning": "", "finish_reason": "stop", "opened": False, "raw": False,
    "fingerprint": {"model_digest": "d", "engine": "native", "arithmetic": 1, "kv_type": "f16",
                    "params": {"seed": 1}, "prompt_ids": [1]},
}  # fmt: skip
ANSWER_ID = "9770988e7916"
SHARED = {"files": [{"size": 9, "sha256": SHA256}], "settings": SETTINGS, "quantization": "Q8_0",
          "architecture": "llama", "licence": "MIT"}  # fmt: skip
MODELFILE = b"""FROM m
PARAMETER temperature 0.5
SYSTEM \"\"\"Be
brief.\"\"\"
MESSAGE user hi
"""

_OCI = wanted.parse("localhost:5000/u/m:1b")
_PEER = wanted.parse("http://nas:11435/m")
assert isinstance(_OCI, OciName) and isinstance(_PEER, PeerName)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


def _lock(data: bytes, folder: Path) -> None:
    lock = Lockfile(folder / "lock.json")
    lock.path.write_bytes(data)
    lock.all()


def _record(data: bytes, folder: Path) -> None:
    store = Store(folder)
    (folder / "m.json").write_bytes(data)
    (folder / "m.gguf").write_bytes(b"GGUF")
    found = store.find(Ref("m"))
    assert found is not None and (found.record is not None or found.problem)


def _answer(data: bytes, folder: Path) -> None:
    (folder / f"{ANSWER_ID}.json").write_bytes(data)
    Answers(folder).find(ANSWER_ID)


def _manifest(data: bytes, folder: Path) -> None:
    manifest.parse(data)


def _settings(data: bytes, folder: Path) -> None:
    """As the small layers of a manifest, which are read leniently: nothing at all is raised."""
    layers = manifest.parse(json.dumps(MANIFEST).encode())
    ollama.settings_of(layers, lambda layer: data.decode("utf-8", "replace"))


def _modelfile(data: bytes, folder: Path) -> None:
    modelfile.parse(data.decode("utf-8", "surrogateescape"))


def _config(data: bytes, folder: Path) -> None:
    """The configuration of a registry's model."""
    layers = manifest.parse(json.dumps(MANIFEST).encode())
    oci._config(SimpleNamespace(text=lambda layer: data.decode("utf-8", "replace")), layers)  # type: ignore[arg-type]


def _token(data: bytes, folder: Path) -> None:
    """A registry's demand of a token, and its answer."""
    header = data.decode("latin-1")

    def get(url: str, headers: Mapping[str, str], max_bytes: int) -> Small:
        if url.startswith("https://auth"):
            return Small(200, {}, data)
        return Small(401, {"www-authenticate": header}, data)

    oci.resolve(_OCI, get=get)


def _peer_answer(data: bytes, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "get", lambda url, headers, max_bytes: Small(200, {}, data))
        peer.resolve(_PEER)


def _hub(folder: Path) -> Hub:
    return Hub("http://127.0.0.1:9", token="", cache=folder / "hub", offline=False)


def _listing(data: bytes, folder: Path) -> None:
    hub = _hub(folder)
    hub._api = SimpleNamespace(model_info=lambda *a, **k: ModelInfo(**json.loads(data)))
    hub.look(Repository("u", "r"), Revision("main"))


def _search(data: bytes, folder: Path) -> None:
    session = SimpleNamespace(
        get=lambda *a, **k: SimpleNamespace(json=lambda: json.loads(data)),
        event_hooks={"request": [], "response": []},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.utils.get_session", lambda: session)
        patch.setattr("huggingface_hub.utils.hf_raise_for_status", lambda response: None)
        _hub(folder).search("x")


#: What reads a document, and a document that it takes.
READERS: dict[str, tuple[Callable[[bytes, Path], None], Any]] = {
    "manifest": (_manifest, MANIFEST),
    "parameters of a manifest": (_settings, SETTINGS["parameters"]),
    "messages of a manifest": (_settings, SETTINGS["messages"]),
    "config": (_config, {"config": {"quantization": "Q8_0"}, "model_family": "llama"}),
    "token": (_token, b'Bearer realm="https://auth.e/token",service="e"'),
    "listing": (_listing, LISTING),
    "search": (_search, FOUND),
    "record": (_record, RECORD),
    "answer": (_answer, ANSWER),
    "lock file": (_lock, LOCK),
    "share": (_peer_answer, SHARED),
    "Modelfile": (_modelfile, MODELFILE),
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "\ud800", "\x1b[2J", "../x", "/\0", "9" * 5000, -1, 0, 2**63, 1e308]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(document: Any) -> list[tuple[Any, ...]]:
    """The way to every value in a document."""
    if not isinstance(document, (dict, list)):
        return [()]
    rows = document.items() if isinstance(document, dict) else enumerate(document)
    return [(), *((key, *rest) for key, value in rows for rest in places(value))]


def with_value(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    at = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return changed


def encoded(document: Any) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def read(name: str, data: bytes, folder: Path) -> None:
    try:
        READERS[name][0](data, folder)
    except LocalLLMError as e:
        assert e.message and len(e.message) < 2000
        f"{e.message} {e.hint}".encode()  # no half of a character


@pytest.mark.parametrize("name", READERS)
def test_what_is_right_is_read(name: str, folder: Path) -> None:
    if name == "token":  # its stand-in never lets anybody in
        with pytest.raises(LocalLLMError, match="gives no token"):
            READERS[name][0](encoded(READERS[name][1]), folder)
    else:
        READERS[name][0](encoded(READERS[name][1]), folder)


@pytest.mark.parametrize("name", READERS)
def test_any_bytes(name: str, folder: Path) -> None:
    good = encoded(READERS[name][1])

    @settings(max_examples=40, deadline=None)
    @given(
        st.binary(max_size=60)
        | st.builds(
            lambda at, n, new: good[:at] + new + good[at + n :],
            st.integers(0, len(good)), st.integers(0, 9), st.binary(max_size=9),
        )
    )  # fmt: skip
    @example(b"[" * 3000)
    @example(b"9" * 5000)
    @example(b"\xff\xfe[")
    @example(b"")
    def check(data: bytes) -> None:
        read(name, data, folder)

    check()


@pytest.mark.parametrize("name", [n for n, (_, good) in READERS.items() if type(good) is not bytes])
def test_any_value_at_any_place(name: str, folder: Path) -> None:
    good = READERS[name][1]

    @settings(max_examples=80, deadline=None)
    @given(st.sampled_from(places(good)), values)
    def check(place: tuple[Any, ...], value: Any) -> None:
        read(name, encoded(with_value(good, place, value)), folder)

    check()


@pytest.mark.parametrize("name", [n for n, (_, good) in READERS.items() if type(good) is not bytes])
def test_deep_values_at_every_place(name: str, folder: Path) -> None:
    """As deep as json reads them, which is deeper than Python shows them."""
    good = READERS[name][1]
    for place in places(good):
        data = encoded(with_value(good, place, "@"))
        for depth in (400, 800, 900, 930, 960, 990):
            deep = b"[" * depth + b"]" * depth
            read(name, data.replace(b'"@"', deep), folder)


@pytest.mark.parametrize("realm", ["http://[", "https://[x]/", "https://a:b/", "https://a:99999/"])
def test_realms_that_are_no_address(realm: str, folder: Path) -> None:
    read("token", f'Bearer realm="{realm}"'.encode(), folder)


def test_the_check_can_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes, folder: Path) -> None:
        json.loads(data)

    monkeypatch.setitem(READERS, "manifest", (broken, MANIFEST))
    with pytest.raises(ValueError):
        read("manifest", b"{", folder)
