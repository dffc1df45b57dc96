"""Stores of other programs, made by hand as these programs lay them out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from localllm.store.foreign import hub, lm_studio, ollama, stores
from localllm.store.settings import Settings

GGUF = b"GGUF1234"
KIND = "application/vnd.ollama.image."


def blob(store: Path, data: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(data).hexdigest()
    place = store / "blobs" / f"sha256-{sha256}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return {"digest": f"sha256:{sha256}", "size": len(data)}


def add(store: Path, where: str, layers: dict[str, bytes]) -> None:
    rows = [{"mediaType": KIND + role, **blob(store, data)} for role, data in layers.items()]
    path = store / "manifests" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"layers": rows}))


def test_ollama(tmp_path: Path) -> None:
    add(
        tmp_path,
        "registry.ollama.ai/library/llama3/8b",
        {
            "model": GGUF,
            "template": b"{{ .Prompt }}",
            "params": b'{"temperature": 0.5, "num_gpu": 3, "top_k": "x"}',
            "messages": b'[{"role": "tool", "content": "x"}]',
            "system": b"\xff",
        },
    )
    add(tmp_path, "registry.ollama.ai/me/own/latest", {"model": GGUF})
    add(tmp_path, "example.org/a/b/c", {"model": GGUF})
    mine, other, eight = sorted(ollama.models(tmp_path), key=lambda model: str(model.ref))[:3]
    assert [str(m.ref) for m in (mine, other, eight)] == [
        "ollama/example.org/a/b:c",
        "ollama/llama3:8b",
        "ollama/me/own",
    ]
    assert other.files[0].read_bytes() == GGUF
    assert other.sha256 == hashlib.sha256(GGUF).hexdigest()
    assert other.settings == Settings(
        template="{{ .Prompt }}", system="\ufffd", parameters={"temperature": 0.5}
    )


def test_ollama_leaves_out_what_is_not_whole(tmp_path: Path) -> None:
    add(tmp_path, "registry.ollama.ai/library/short/1b", {"model": GGUF + b"5"})
    next((tmp_path / "blobs").iterdir()).write_bytes(GGUF)
    add(tmp_path, "registry.ollama.ai/library/..evil/1b", {"model": GGUF})
    add(tmp_path, "registry.ollama.ai/library/noblob/1b", {"model": b"GGUFx"})
    (tmp_path / "blobs" / f"sha256-{hashlib.sha256(b'GGUFx').hexdigest()}").unlink()
    for name, data in (("garbage", b"\xff"), ("empty", b""), ("list", b"[]")):
        path = tmp_path / "manifests/registry.ollama.ai/library" / name / "1b"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    assert list(ollama.models(tmp_path)) == []
    assert list(ollama.models(tmp_path / "nowhere")) == []


def test_lm_studio(tmp_path: Path) -> None:
    home, moved = tmp_path / "home", tmp_path / "moved"
    home.mkdir()
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    folder = moved / "models" / "lmstudio-community" / "Qwen3-4B-GGUF"
    folder.mkdir(parents=True)
    for name in ("Qwen3-4B-Q4_K_M.gguf", "mmproj-Qwen3-4B-F16.gguf", "odd name.gguf", "x.txt"):
        (folder / name).write_bytes(GGUF)
    found = [m for place in lm_studio.folders({}, home) for m in lm_studio.models(place)]
    assert [(str(m.ref), m.files[0].name) for m in found] == [
        ("lm-studio/lmstudio-community/qwen3-4b-gguf:q4_k_m", "Qwen3-4B-Q4_K_M.gguf"),
        ("lm-studio/lmstudio-community/qwen3-4b-gguf:odd-name", "odd name.gguf"),
    ]


def test_the_cache_of_the_hub(tmp_path: Path) -> None:
    base = tmp_path / "huggingface" / "hub" / "models--user--Repo-GGUF"
    snapshot = base / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (base / "blobs").mkdir()
    for i in (1, 2):
        (base / "blobs" / str(i)).write_bytes(GGUF)
        name = f"big-Q4_0-0000{i}-of-00002.gguf"
        (snapshot / name).symlink_to(Path("../../blobs") / str(i))
    found = list(hub.models(hub.folder({"HF_HOME": str(tmp_path / "huggingface")}, tmp_path)))
    assert [(str(m.ref), m.size, len(m.files)) for m in found] == [
        ("hf.co/user/repo-gguf:q4_0", 16, 2)
    ]
    assert hub.folder({"HF_HUB_CACHE": "/x"}, tmp_path) == Path("/x")
    assert hub.folder({}, tmp_path) == tmp_path / ".cache" / "huggingface" / "hub"


def test_all_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "o", "registry.ollama.ai/library/llama3/8b", {"model": GGUF})
    env = {"OLLAMA_MODELS": str(tmp_path / "o")}
    assert [str(m.ref) for m in stores.models(env, tmp_path)] == ["ollama/llama3:8b"]
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "o"))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = stores.find("ollama/llama3:8b")
    assert found is not None and found.program == "Ollama"
    for name in ("ollama/llama3:9b", "ollama/..", "llama3:8b", ""):
        assert stores.find(name) is None
