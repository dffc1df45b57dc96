"""`ps` and `stop` against a running `serve` of all models in the store, with and without keys."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from stand_ins.command_line import cli, environment, is_error
from stand_ins.server_process import served

from localllm import __version__
from localllm.server import announced
from localllm.server.announced import Announced

KEY = "a-long-secret-key"


@pytest.fixture
def home(tmp_path: Path, tiny: Callable[[str, str], Path]) -> Path:
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    for arch in ("llama", "qwen2"):
        shutil.copy(tiny(arch, "F32"), models / f"{arch}@1b.gguf")
    return tmp_path / "home"


@pytest.fixture
def server(home: Path) -> Iterator[str]:
    flags = ["--api-key", KEY, "--keep-alive", "2h", "--ctx", "256"]
    with served(*flags, env=environment(home)) as server:
        yield f"{server.url}/v1"


def test_a_server_of_all_models(home: Path, server: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    listed = httpx2.get(f"{server}/models", headers=headers).json()["data"]
    assert [each["id"] for each in listed] == ["llama:1b", "qwen2:1b"]
    assert cli("ps", home=home).stderr.startswith("No model is loaded.")
    ask = {"prompt": "a", "max_tokens": 2}
    nameless = httpx2.post(f"{server}/completions", json=ask, headers=headers)
    assert nameless.status_code == 400 and nameless.json()["error"]["param"] == "model"
    ask["model"] = "qwen2:1b"
    assert httpx2.post(f"{server}/completions", json=ask, headers=headers).status_code == 200
    shown = cli("ps", home=home).stdout
    assert re.search(r"qwen2:1b +loaded +\S+ [kM]?B +256 +none +2 h +http", shown), shown
    (document,) = json.loads(cli("ps", "--json", home=home).stdout)
    assert document["models"][0]["name"] == "qwen2:1b" and KEY not in json.dumps(document)
    assert "unloaded at" in cli("stop", "qwen2:1b", home=home).stderr
    assert "not loaded" in cli("stop", "llama:1b", home=home).stderr
    settings = cli("env", "opencode", home=home).stdout
    assert server in settings and "llama:1b" in settings and "YOUR_KEY" in settings
    bad = cli("stop", "no-such", home=home)
    assert bad.returncode == 2 and is_error(bad.stderr, "no-such", hint="localllm ps")
    (file,) = (home / "cache" / "servers").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and KEY not in file.read_text()


def test_a_server_at_an_address_of_the_network(home: Path) -> None:
    found = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    if not found:
        pytest.skip("this machine is in no network")
    flags = ["--host", found[0], "--api-key", KEY, "--ctx", "256"]
    with served("llama:1b", *flags, env=environment(home)) as server:
        assert found[0] in server.url
        (row,) = json.loads(cli("ps", "--json", home=home).stdout)[0]["models"]
        assert row["name"] == "llama:1b"
        stopped = cli("stop", "llama:1b", home=home)
        assert stopped.returncode == 0 and "was unloaded" in stopped.stderr
        headers = {"authorization": "Bearer wrong-key-here"}
        assert httpx2.get(f"{server.url}/localllm/ps", headers=headers).status_code == 401


def test_run_asks_the_server(home: Path, server: str) -> None:
    real = {"TEST_FAKE_SESSION": ""}
    words = ["run", "llama:1b", "hello", "--seed", "3", "--max-tokens", "9", "--json"]

    def answer(*more: str) -> dict[str, Any]:
        done = cli(*words, *more, home=home, env=real)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (served, here, long) = answer(), answer("--no-server"), answer("--ctx", "128")
    assert [each["n_ctx"] for each in (served, here, long)] == [256, 2048, 128]
    same = ("text", "id", "generated_tokens", "seed", "engine", "template", "finish_reason")
    assert all(served[name] == here[name] == long[name] for name in same)
    (document,) = json.loads(cli("ps", "--json", home=home).stdout)
    assert [row["name"] for row in document["models"]] == ["llama:1b"]
    assert cli("replay", served["id"], home=home, env=real).returncode == 0
    (file,) = (home / "cache" / "servers").iterdir()
    file.write_text(file.read_text().replace(f'"version": "{__version__}"', '"version": "9.9"'))
    other = cli(*words, home=home, env=real)
    assert json.loads(other.stdout)["text"] == served["text"]
    note = other.stderr.splitlines()[0]
    assert "9.9" in note and note.endswith("loading the model here")


def test_without_a_server(tmp_path: Path) -> None:
    assert "No server" in cli("ps", home=tmp_path).stderr
    assert json.loads(cli("ps", "--json", home=tmp_path).stdout) == []
    done = cli("stop", "x", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "no server", hint="localllm serve")


def test_what_is_left_behind_goes(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with announced.announcing(tmp_path, Announced("http://127.0.0.1:1", os.getpid())):
        (tmp_path / "1.json").write_text(
            json.dumps({"url": "http://127.0.0.1:2", "pid": gone.pid, "version": "1", "key": "",
                        "certificate": "", "started_s": 1e9})
        )  # fmt: skip
        for i, text in enumerate(["", "{}", "[]", '{"url": 1}', "[" * 5000]):
            (tmp_path / f"bad{i}.json").write_text(text)
        stranger = Announced("http://127.0.0.1:3", os.getppid(), started_s=1e9)
        (tmp_path / "2.json").write_text(json.dumps(dataclasses.asdict(stranger)))
        (server,) = announced.found(tmp_path)
        assert not (tmp_path / "2.json").exists(), "its number is another process's now"
        assert server.url == "http://127.0.0.1:1"
        assert not (tmp_path / "1.json").exists()
    assert announced.found(tmp_path) == []
    assert announced.found(tmp_path / "none") == []
