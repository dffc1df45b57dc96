"""Clients that leave, streams that last, and a server that ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from stand_ins.api_server import (
    NAME,
    FakeService,
    FakeTicket,
    Running,
    exchange,
    manager_of,
    running,
    serving,
)
from stand_ins.conditions import wait

from localllm.engine.request import LoadedModel
from localllm.errors import FileError
from localllm.server import listen, sse
from localllm.server.opening import ModelFile, OpenOptions, open_service


def request(text: str, **fields: object) -> bytes:
    body = {"model": NAME, "messages": [{"role": "user", "content": text}], **fields}
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def service_of(server: Running) -> FakeService:
    assert isinstance(server.service, FakeService)
    return server.service


def newest(server: Running, before: int) -> FakeTicket:
    wait(lambda: len(service_of(server).tickets) > before)
    return service_of(server).tickets[-1]


@pytest.mark.parametrize("text", ["hang", "drip"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_a_client_that_leaves_ends_its_request(
    fake: Running, text: str, stream: bool, half: bool
) -> None:
    before = len(service_of(fake).tickets)
    with socket.create_connection(("127.0.0.1", fake.port), timeout=10) as connection:
        connection.sendall(request(text, stream=stream))
        ticket = newest(fake, before)
        assert not ticket.cancelled.is_set()
        if half:
            connection.shutdown(socket.SHUT_WR)
            wait(ticket.cancelled.is_set)
    wait(ticket.cancelled.is_set)
    wait(lambda: ticket in service_of(fake).ended)


def test_many_clients_that_leave_at_any_time(fake: Running) -> None:
    before = len(service_of(fake).tickets)

    def leave(i: int) -> None:
        text = ("hang", "drip", "say abc")[i % 3]
        data = request(text, stream=bool(i % 2), n=1 + i % 2)
        exchange(fake.port, data[: len(data) - 5 * (i % 5 == 0)], close_after_s=0.002 * (i % 7))

    threads = [threading.Thread(target=leave, args=(i,)) for i in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait(lambda: len(service_of(fake).ended) == len(service_of(fake).tickets))
    assert len(service_of(fake).tickets) - before <= 48
    assert httpx2.get(f"{fake.url}/health").json() == {"status": "ok"}


def test_a_silent_stream_pings(fake: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_S", 0.05)
    with (
        httpx2.Client(timeout=10) as client,
        client.stream(
            "POST",
            f"{fake.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hang"}], "stream": True},
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = ""
        for part in answer.iter_text():
            text += part
            if text.count(": ping\n\n") >= 2:
                break
        assert '"role":"assistant"' in text


def test_a_broken_stream_has_no_done(fake: Running) -> None:
    answer = exchange(fake.port, request("break", stream=True))
    assert b'"error"' in answer and b"[DONE]" not in answer
    good = exchange(fake.port, request("say a", stream=True))
    assert good.rstrip().endswith(b"0") and b"data: [DONE]\n\n" in good


def test_an_early_error_has_a_status(fake: Running) -> None:
    answer = exchange(fake.port, request("break"))
    assert answer.startswith(b"HTTP/1.1 500") and b"is no number" in answer


def test_a_stalled_engine_is_not_healthy(
    fake_info: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    service = FakeService(fake_info)
    with running(service) as server:
        assert httpx2.get(f"{server.url}/health").status_code == 200
        service.stalled_s = 2.0
        assert httpx2.get(f"{server.url}/health").status_code == 200  # nothing to do
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        connection.sendall(request("hang"))
        newest(server, 0)
        answer = httpx2.get(f"{server.url}/health")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "stalled"
        assert NAME in answer.json()["error"]["message"]
        wait(lambda: f"{NAME} makes no progress" in caplog.text)
        connection.close()
        wait(lambda: httpx2.get(f"{server.url}/health").status_code == 200)
        wait(lambda: f"{NAME} goes on" in caplog.text)
        assert len([r for r in caplog.records if r.levelname == "ERROR"]) <= 1  # not each poll


def test_a_client_that_leaves_in_its_body_is_no_fault(
    fake: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def counted(what: str) -> float:
        lines = httpx2.get(f"{fake.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(what))

    left = 'localllm_http_responses_total{route="/v1/chat/completions",status="499"}'
    before, faults = counted(left), counted('localllm_http_responses_total{status="500"')
    n_gone = counted("localllm_http_disconnects_total")
    with socket.create_connection(("127.0.0.1", fake.port), timeout=10) as connection:
        connection.sendall(request("say a")[:-5])
    wait(lambda: counted(left) == before + 1)
    assert counted("localllm_http_disconnects_total") == n_gone + 1
    assert counted('localllm_http_responses_total{status="500"') == faults
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("host", "hint"), [("192.0.2.1", "--host"), ("no host", "--host"), ("127.0.0.1", "--port")]
)
def test_what_cannot_be_listened_on(host: str, hint: str) -> None:
    refused = pytest.raises(FileError, match="cannot listen on")
    with listen.bind("127.0.0.1", 0) as taken, refused as failed:
        listen.bind(host, taken.getsockname()[1])
    assert failed.value.hint and hint in failed.value.hint


def test_connections_have_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    allowed = {"soft": 200, "hard": 200}

    def fixed(kind: int, limits: tuple[int, int]) -> None:
        allowed["soft"] = limits[0]

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (allowed["soft"], allowed["hard"]))
    monkeypatch.setattr(resource, "setrlimit", fixed)
    n_files = listen.OWN_FILES + listen.BACKLOG + listen.ABRUPT
    assert listen._fitting(512) == 200 - n_files
    allowed["hard"] = 4096
    assert listen._fitting(512) == 512 and allowed["soft"] == 512 + n_files
    allowed.update(soft=32, hard=32)
    with pytest.raises(FileError, match="32 open files"):
        listen._fitting(512)


def test_far_too_many_connections_are_cut(fake_info: LoadedModel) -> None:
    n = listen.ABRUPT + 30
    with serving(manager_of(FakeService(fake_info), (NAME,)), max_connections=2) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(n)]
        try:
            for each in held:
                each.setblocking(False)
            wait(lambda: sum(_is_cut(each) for each in held) >= 28, 1.8)  # before their time is up
        finally:
            for each in held:
                each.close()


def _is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_the_end_lets_answers_finish(fake_info: LoadedModel) -> None:
    got: list[bytes] = []
    with running(FakeService(fake_info)) as server:
        asking = threading.Thread(
            target=lambda: got.append(exchange(server.port, request("say " + "x" * 200)))
        )
        asking.start()
        newest(server, 0)
    asking.join(10)
    assert got[0].startswith(b"HTTP/1.1 200") and b"x" * 200 in got[0]


@pytest.mark.parametrize("stream", [True, False])
def test_what_runs_at_the_end_is_told_so(
    fake_info: LoadedModel, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "DRAIN_S", 3.0)
    monkeypatch.setattr(listen, "LAST_S", 2.8)
    got: list[bytes] = []
    with running(FakeService(fake_info)) as server:
        asking = threading.Thread(
            target=lambda: got.append(exchange(server.port, request("drip", stream=stream)))
        )
        asking.start()
        newest(server, 0)
    asking.join(10)
    assert b"the server is stopping" in got[0] and b"[DONE]" not in got[0]
    assert got[0].startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 503")
    assert got[0].rstrip().endswith(b"0" if stream else b"}")  # whole, not cut in a piece


def test_one_connection_too_many(fake_info: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "REFUSED_S", 0.2)
    manager = manager_of(FakeService(fake_info), (NAME,))
    with serving(manager, max_connections=2) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(2)]
        answer = exchange(port, request("say a"))
        assert answer.startswith(b"HTTP/1.1 503") and b"2 connections already" in answer
        assert b"retry-after: 1" in answer
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert silent.recv(10) == b""  # closed, though it never asked
        for connection in held:
            connection.close()
        wait(lambda: exchange(port, request("say a")).startswith(b"HTTP/1.1 200"))


def test_metrics_count(fake: Running) -> None:
    def figures() -> dict[str, float]:
        lines = httpx2.get(f"{fake.url}/metrics").text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    before = figures()
    exchange(fake.port, request("say abc", stream=True))
    after = figures()
    for name in (
        'localllm_http_responses_total{route="/v1/chat/completions",status="200"}',
        "localllm_time_to_first_token_seconds_count",
        "localllm_queue_seconds_count",
        "localllm_time_per_output_token_seconds_count",
    ):
        assert after[name] == before.get(name, 0) + 1
    buckets = [
        v for k, v in after.items() if k.startswith("localllm_time_to_first_token") and "le=" in k
    ]
    assert (
        buckets == sorted(buckets)
        and buckets[-1] == after["localllm_time_to_first_token_seconds_count"]
    )
    assert after[f'localllm_prefix_hit_tokens_total{{model="{NAME}"}}'] == 7


def test_the_docs_page_loads_nothing(http: httpx2.Client) -> None:
    page = http.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/v1/chat/completions" in page.text and "repetition_penalty" in page.text
    for mark in ("<script", "<link", "<img", "http://", "https://", "src="):
        assert mark not in page.text
    paths = http.get("/openapi.json").json()["paths"]
    schema = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert "temperature" in schema["schema"]["properties"]


def test_strict_refuses_unknown_fields(fake_info: LoadedModel) -> None:
    with running(FakeService(fake_info), strict=True) as server:
        url = f"{server.url}/v1/completions"
        answer = httpx2.post(url, json={"prompt": "say a", "temprature": 1})
        assert answer.status_code == 400 and "temperature" in answer.json()["error"]["message"]
        assert httpx2.post(url, json={"prompt": "say a", "user": "me"}).status_code == 200


def test_clients_of_a_real_model_at_once(tiny: Callable[[str, str], Path]) -> None:
    """Together they get what each gets alone, and those that leave are skipped."""
    service = open_service(
        ModelFile(tiny("llama", "F32"), "tiny"),
        OpenOptions(engine="native", n_ctx=1024),
        max_queue=3,
        n_sequences=2,
    )
    with running(service, names=("tiny",)) as server:

        def ask(i: int, n: int = 1) -> list[str]:
            answer = httpx2.post(
                f"{server.url}/v1/completions",
                json={"prompt": f"number {i}", "seed": i, "max_tokens": 30, "n": n},
                timeout=30,
            )
            return [choice["text"] for choice in answer.json()["choices"]]

        six = {"prompt": ["x"] * 6, "max_tokens": 3}
        never = httpx2.post(f"{server.url}/v1/completions", json=six)
        assert never.status_code == 400
        assert "6 prompts in one request; the server takes 5 at once" in never.text
        alone = [ask(i) for i in range(3)]
        assert ask(0, n=3)[0] == alone[0][0]
        together: dict[int, list[str]] = {}
        threads = [
            threading.Thread(target=lambda i=i: together.update({i: ask(i)})) for i in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [together[i] for i in range(3)] == alone

        long = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        data = json.dumps(long).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
        raw = f"{head}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        leaving = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        for connection in leaving[:2]:
            connection.sendall(raw)
        wait(lambda: service.state().running == 2)
        for connection in leaving[2:]:
            connection.sendall(raw)
        wait(lambda: service.state().waiting == 3)
        full = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
        for connection in leaving:
            connection.close()
        wait(lambda: service.state().waiting == service.state().running == 0, 10)
        assert ask(1) == alone[1]
