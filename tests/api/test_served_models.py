"""Several real models behind one server: loads beside answers, and clients that leave meanwhile."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from stand_ins.api_server import exchange, serving
from stand_ins.conditions import wait

from localllm.engine.request import Service
from localllm.server.file_loader import FileLoader
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile, Need, OpenOptions, Room
from localllm.server.shelf import Item, Shelf


@dataclass
class SlowLoader:
    """Loads of the model `slow` begin when they are let."""

    loader: FileLoader = field(default_factory=lambda: FileLoader(64, 4))
    let: threading.Event = field(default_factory=threading.Event)
    loading: threading.Event = field(default_factory=threading.Event)

    def need(self, item: Item, room: Room) -> Need:
        return self.loader.need(item, room)

    def open(self, item: Item, room: Room | None, progress: Callable[[float], None]) -> Service:
        if item.names[0] == "slow":
            self.loading.set()
            assert self.let.wait(20)
        return self.loader.open(item, room, progress)


@dataclass
class Server:
    url: str
    port: int
    loader: SlowLoader
    manager: Manager
    http: httpx2.Client

    def ps(self) -> dict[str, dict[str, Any]]:
        rows = self.http.get("/localllm/ps").json()["models"]
        return {row["name"]: row for row in rows}


@pytest.fixture
def server(tiny: Callable[[str, str], Path], tmp_path: Path) -> Iterator[Server]:
    options = OpenOptions(engine="native", n_ctx=512)
    (tmp_path / "broken.gguf").write_bytes(b"no model")
    paths = {
        "quick": tiny("llama", "F32"),
        "slow": tiny("qwen2", "F32"),
        "broken": tmp_path / "broken.gguf",
    }
    items = [Item(ModelFile(path, name), options, (name,), 1) for name, path in paths.items()]
    loader = SlowLoader()
    manager = Manager(Shelf(items), loader, 4 << 30)
    with serving(manager) as port:
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=url, timeout=30) as http:
            yield Server(url, port, loader, manager, http)
            loader.let.set()


def ask(server: Server, model: str, **more: Any) -> httpx2.Response:
    body = {"model": model, "prompt": "hello", "max_tokens": 3, "ignore_eos": True, **more}
    return server.http.post("/v1/completions", json=body)


def test_tokens_go_on_while_another_model_loads(server: Server) -> None:
    assert ask(server, "quick").status_code == 200
    told: list[int] = []
    waiting = threading.Thread(target=lambda: told.append(ask(server, "slow").status_code))
    waiting.start()
    assert server.loader.loading.wait(10)
    body = {"model": "quick", "prompt": "a", "max_tokens": 300, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    n_tokens = 0
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                n_tokens += sum(len(choice["token_ids"]) for choice in choices)
    assert n_tokens == 300 and not told  # a whole answer, and the other model still loads
    assert server.ps()["slow"]["status"] == "loading" and server.ps()["slow"]["waiting"] == 1
    server.loader.let.set()
    waiting.join(20)
    assert told == [200]


def test_all_models_are_listed_with_what_is_loaded(server: Server) -> None:
    ask(server, "quick", keep_alive="90s")
    listed = server.http.get("/v1/models").json()["data"]
    status = {each["id"]: each["status"]["value"] for each in listed}
    assert status == {"quick": "loaded", "slow": "unloaded", "broken": "unloaded"}
    assert listed[0]["meta"]["n_ctx"] == 512 and "meta" not in listed[1]
    assert server.http.get("/v1/models/slow").json()["status"] == {"value": "unloaded"}
    row = server.ps()["quick"]
    assert 80 < row["expires_s"] <= 90 and row["answering"] == 0 and row["n_bytes"] > 0
    assert ask(server, "quick", keep_alive="x").json()["error"]["param"] == "keep_alive"
    ask(server, "quick", keep_alive=0)
    wait(lambda: not server.ps())


def test_a_model_that_cannot_be_loaded_costs_the_others_nothing(server: Server) -> None:
    first = ask(server, "quick").json()["choices"][0]["text"]
    for _ in range(3):
        answer = ask(server, "broken")
        assert answer.status_code == 503 and "not a GGUF file" in answer.json()["error"]["message"]
    assert list(server.ps()) == ["quick"]
    assert ask(server, "quick", seed=1, temperature=0).status_code == 200 and first


def test_a_client_that_leaves_while_its_model_loads(server: Server) -> None:
    data = json.dumps({"model": "slow", "prompt": "a", "max_tokens": 400}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
    leaving = threading.Thread(
        target=exchange, args=(server.port, request), kwargs={"close_after_s": 0.4}
    )
    leaving.start()
    assert server.loader.loading.wait(10)
    wait(lambda: server.ps()["slow"]["waiting"] == 1)
    leaving.join()
    wait(lambda: server.ps()["slow"]["waiting"] == 0)
    server.loader.let.set()
    wait(lambda: server.ps()["slow"]["status"] == "loaded")
    assert server.ps()["slow"]["answering"] == 0 and server.ps()["slow"]["expires_s"] is not None
    assert server.manager.states()["slow"].generated_tokens == 0  # nothing was computed for it


def test_stop_by_a_request(server: Server) -> None:
    ask(server, "quick")
    stop = server.http.post("/localllm/stop", json={"model": "quick"})
    assert stop.json() == {"was_loaded": True, "answering": 0} and not server.ps()
    assert server.http.post("/localllm/stop", json={}).json()["error"]["param"] == "model"
    assert server.http.post("/localllm/stop", json={"model": "no"}).status_code == 404
    evil = {"origin": "https://evil.example"}
    assert server.http.post("/localllm/stop", json={}, headers=evil).status_code == 403
    assert ask(server, "quick").status_code == 200  # it comes back


def test_counts_of_a_model_go_on_over_its_unloads(server: Server) -> None:
    def figure(name: str) -> float | None:
        line = f'localllm_{name}{{model="quick"}} '
        found = re.findall(f"^{re.escape(line)}(.*)$", server.http.get("/metrics").text, re.M)
        return float(found[0]) if found else None

    for n_tokens in (3, 6):
        assert ask(server, "quick").status_code == 200
        wait(lambda n=n_tokens: figure("generated_tokens_total") == n)
        assert figure("kv_blocks_free") is not None
        server.http.post("/localllm/stop", json={"model": "quick"})
        assert figure("generated_tokens_total") == n_tokens
        assert figure("kv_blocks_free") is None  # a gauge ends with what it is of
