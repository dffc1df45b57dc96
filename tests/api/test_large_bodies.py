"""Large requests: the server goes on beside them, and takes little memory for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.api_server import FakeService, Running, running
from stand_ins.server_process import Served, served

from localllm.engine.request import LoadedModel
from localllm.server import json_body, lanes, security
from localllm.server.errors import RequestError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}
N = security.MAX_BODY_BYTES - 200


@pytest.fixture(scope="module")
def server(tiny: Callable[[str, str], Path]) -> Iterator[Served]:
    with served(tiny("llama", "F32"), "--name", "tiny", "--no-kv-disk") as server:
        warm = httpx2.post(f"{server.url}{TEXT}", json={"prompt": "a", "max_tokens": 1}, timeout=60)
        assert warm.status_code == 200
        yield server


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, lambda: b'{"a":"%s"}' % (b"a" * N), "messages"),
        (CHAT, lambda: b'{"a":"%s"}' % (b"\\n" * (N // 2)), "messages"),
        (CHAT, lambda: b'{"a":[%s0]}' % (b"[]," * (N // 3)), "524,288 values"),
        (CHAT, lambda: b'{"a":[%s0]}' % (b'{"a":0},' * (N // 8)), "524,288 values"),
        (CHAT, lambda: b"{%s}" % b",".join(b'"%d":0' % i for i in range(N // 13)), "524,288 va"),
        (CHAT, lambda: b'{"a":[%s0]}' % (b'"\\ud83d\\ude00",' * 250_000), "messages"),
        (TEXT, lambda: b'{"prompt":[%s0]}' % (b"1000," * (N // 5)), "524,288 values"),
        (TEXT, lambda: b'{"prompt":"%s"}' % (b"word " * (N // 5)), "characters"),
        (CHAT, lambda: json.dumps({"messages": [{"role": "user", "content": "word " * (N // 5)}]}),
         "4 MiB"),
        ("/tokenize", lambda: b'{"content":"%s"}' % (b"word " * (N // 5)), "characters"),
        ("/detokenize", lambda: b'{"tokens":[%s0]}' % (b"1000," * (N // 5)), "524,288 values"),
    ],
    ids=["string", "escapes", "lists", "objects", "keys", "surrogates", "ids", "prompt", "messages",
         "tokenize", "detokenize"],
)  # fmt: skip
def test_others_go_on(path: str, body: Callable[[], Any], message: str, server: Served) -> None:
    """The bars have a margin of ten and more; before, these took seconds and gigabytes."""
    process = psutil.Process(server.process.pid)
    before, ended = process.memory_info().rss, threading.Event()
    waits, sizes = [0.0], [before]

    def watch() -> None:
        with httpx2.Client(timeout=60) as client:
            while not ended.is_set():
                began = time.monotonic()
                client.get(f"{server.url}/health")
                waits.append(time.monotonic() - began)

    def weigh() -> None:
        while not ended.wait(0.002):
            sizes.append(process.memory_info().rss)

    watchers = [threading.Thread(target=each) for each in (watch, weigh)]
    content = body()
    for each in watchers:
        each.start()
    try:
        answer = httpx2.post(f"{server.url}{path}", content=content, headers=JSON, timeout=60)
    finally:
        ended.set()
        for each in watchers:
            each.join()
    assert answer.status_code == 400 and message in answer.text, answer.text
    assert max(waits) < 2.0
    assert max(sizes) - before < 64 << 20


def test_all_bodies_together_have_a_limit(
    fake_info: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "MAX_HELD_BYTES", 4000)
    with running(FakeService(fake_info)) as server, httpx2.Client(base_url=server.url) as client:
        held = {"messages": [{"role": "user", "content": "drip"}], "metadata": {"a": "x" * 3000}}
        small = {"messages": [{"role": "user", "content": "say a"}], "metadata": {"a": "x" * 1500}}
        with client.stream("POST", CHAT, json={**held, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            refused = client.post(CHAT, json=small)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "too_many_large_bodies"
        answer = refused
        deadline = time.monotonic() + 10
        while answer.status_code == 503 and time.monotonic() < deadline:
            answer = client.post(CHAT, json=small)
        assert answer.status_code == 200, "its share was not given back"


def test_messages_have_a_limit(http: httpx2.Client) -> None:
    said = [{"role": "user", "content": "a"}] * 4097
    refused = http.post(CHAT, json={"messages": said, "truncate": "start"})
    assert refused.status_code == 400 and "at most 4,096" in refused.text


def test_who_left_holds_nobody_up(fake: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun for a client ends at its next part, what was not begun never begins."""
    monkeypatch.setattr(lanes, "LARGE_BYTES", 100)
    begun, let_go, ended = threading.Event(), threading.Event(), threading.Event()
    parses: list[int] = []
    parse = json_body.parse

    def slow(data: bytes) -> dict[str, Any]:
        parses.append(len(data))
        if len(data) > 1000:
            begun.set()
            let_go.wait(20)
            ended.set()
        return parse(data)

    monkeypatch.setattr("localllm.server.state.LARGE_BYTES", 100)
    monkeypatch.setattr(json_body, "parse", slow)
    body = {"messages": [{"role": "user", "content": "say a"}]}
    url = fake.url + CHAT
    try:
        for size, seconds in ((2000, 5.0), (500, 0.3)):
            with pytest.raises(httpx2.TimeoutException):
                if size == 500:
                    assert begun.wait(10)
                httpx2.post(
                    url, json={**body, "user": "x" * size}, timeout=seconds if size == 500 else 0.5
                )
        answer = httpx2.post(url, json=body, timeout=10)  # a small one has another thread
        assert answer.status_code == 200
    finally:
        let_go.set()
    assert ended.wait(10)
    answer = httpx2.post(url, json={**body, "user": "x" * 300}, timeout=10)
    assert answer.status_code == 200
    assert not [n for n in parses if 500 <= n < 1000], "it was parsed, though nobody waited"


values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text('a[]{},:"\\\n\u20ac', max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text('a[{"\\', max_size=3), inner)
    ),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def parts(value: Any) -> int:
    """Brackets, commas and colons outside of texts."""
    if not isinstance(value, (list, dict)):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    colons = len(value) if isinstance(value, dict) else 0
    return 2 + max(0, len(inner) - 1) + colons + sum(map(parts, inner))


@given(value=values, chunk=st.integers(1, 9), ascii_only=st.booleans())
def test_depth_and_parts_are_counted_right(value: Any, chunk: int, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_CHUNK", chunk)
        patch.setattr(json_body, "MAX_DEPTH", depth(value))
        patch.setattr(json_body, "MAX_PARTS", parts(value))
        json_body._check_shape(data)
        for limit in ("MAX_DEPTH", "MAX_PARTS"):
            if getattr(json_body, limit):
                patch.setattr(json_body, limit, getattr(json_body, limit) - 1)
                with pytest.raises(RequestError):
                    json_body._check_shape(data)
                patch.setattr(json_body, limit, getattr(json_body, limit) + 1)
