"""Host, Origin, keys and bodies, on every route that there is."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import httpx2
import pytest
from fastapi.routing import APIRoute
from stand_ins.api_server import FakeService, Running, exchange, running

from localllm.engine.request import LoadedModel
from localllm.server.app import FAMILIES
from localllm.server.security import OWN, PUBLIC, Access

KEYS = ("first-key-1234", "second-key-5678")
ROUTES = sorted(
    (method, route.path.replace("{name:path}", "fake:1b"))
    for family in FAMILIES
    for route in family.routes
    if isinstance(route, APIRoute)
    for method in route.methods
)
ROUTES += [("GET", "/openapi.json"), ("GET", "/nowhere")]


@pytest.fixture(scope="module")
def locked(fake_info: LoadedModel) -> Iterator[Running]:
    access = Access(
        keys=KEYS,
        origins=("https://chat.example", "http://desk.example:*"),
        hosts=("box.lan",),
        max_body_bytes=10_000,
    )
    with running(FakeService(fake_info), access) as server:
        yield server


def send(server: Running, method: str, path: str, **headers: str) -> httpx2.Response:
    given = {
        "authorization": f"Bearer {KEYS[0]}",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    body = {"json": {}} if method == "POST" else {}
    return httpx2.request(method, server.url + path, headers=given, timeout=20, **body)  # type: ignore[arg-type]


def test_the_table_has_all_routes() -> None:
    assert {path for _, path in ROUTES} >= {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/fake:1b",
        "/health", "/metrics", "/tokenize", "/detokenize", "/docs",
    }  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_checks_who_asks(locked: Running, method: str, path: str) -> None:
    assert send(locked, method, path).status_code not in (401, 403)
    for host in ("evil.example", "evil.example:8000", "10.0.0.1", "localhost.evil.example", ""):
        answer = send(locked, method, path, host=host)
        assert answer.status_code == 403, host
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "forbidden_host"
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "x"):
        answer = send(locked, method, path, origin=origin)
        assert answer.status_code == 403, origin
        assert "access-control-allow-origin" not in answer.headers
    assert send(locked, method, path, sec_fetch_site="cross-site").status_code == 403
    for key in ("", "Bearer wrong", f"Bearer {KEYS[0]}x", f"Basic {KEYS[0]}"):
        expected = path in PUBLIC
        assert (send(locked, method, path, authorization=key).status_code != 401) is expected


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:8000", "box.lan"]
)
def test_names_of_this_machine(locked: Running, host: str) -> None:
    assert send(locked, "GET", "/health", host=host).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:5173", "http://127.0.0.1:3000", "https://localhost", "http://[::1]:5",
     "https://chat.example", "http://desk.example:81", "tauri://localhost", "app://obsidian.md"],
)  # fmt: skip
def test_trusted_pages(locked: Running, origin: str) -> None:
    answer = send(locked, "GET", "/v1/models", origin=origin)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["vary"] == "Origin"


def test_a_refused_key_can_be_read_by_a_trusted_page(locked: Running) -> None:
    answer = send(locked, "GET", "/v1/models", authorization="", origin="http://localhost:1")
    assert answer.status_code == 401 and "access-control-allow-origin" in answer.headers


def test_preflight_needs_no_key_but_a_trusted_origin(locked: Running) -> None:
    asks = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
        "access_control_request_private_network": "true",
        "authorization": "",
    }
    path = "/v1/chat/completions"
    answer = send(locked, "OPTIONS", path, origin="http://localhost:5173", **asks)
    assert answer.status_code == 204 and not answer.content
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert send(locked, "OPTIONS", path, origin="https://evil.example", **asks).status_code == 403


def test_each_key_opens_and_has_a_cache_of_its_own(locked: Running) -> None:
    body = {"prompt": "say a"}
    salts = []
    for header in (
        {"authorization": f"Bearer {KEYS[0]}"},
        {"authorization": f"bearer {KEYS[1]}"},
        {"x-api-key": KEYS[1]},
    ):
        answer = httpx2.post(f"{locked.url}/v1/completions", json=body, headers=header)
        assert answer.status_code == 200
        service = locked.service
        assert isinstance(service, FakeService)
        salts.append(service.tickets[-1].request.salt)
    assert salts[0] != salts[1] == salts[2] and all(len(salt) == 32 for salt in salts)
    assert KEYS[0].encode() not in salts[0]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_only_json_is_read(locked: Running, kind: str) -> None:
    answer = httpx2.post(
        f"{locked.url}/v1/completions",
        content=b'{"prompt": "say a"}',
        headers={"authorization": f"Bearer {KEYS[0]}", "content-type": kind},
    )
    assert answer.status_code == 415


def test_bodies_have_a_limit(locked: Running) -> None:
    headers = {"authorization": f"Bearer {KEYS[0]}", "content-type": "application/json"}
    url = f"{locked.url}/v1/completions"
    assert httpx2.post(url, content=b" " * 10_001, headers=headers).status_code == 413
    pieces = (b" " * 1000 for _ in range(11))  # of no length known in advance
    assert httpx2.post(url, content=pieces, headers=headers).status_code == 413
    packed = {**headers, "content-encoding": "gzip"}
    assert httpx2.post(url, content=b"{}", headers=packed).status_code == 415


def test_who_sends_before_reading_is_told_of_the_limit(locked: Running) -> None:
    """More than the buffers of the connection hold: unread, it would be reset."""
    connection = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=30)
    with contextlib.closing(connection):
        headers = {"authorization": f"Bearer {KEYS[0]}", "content-type": "application/json"}
        connection.request("POST", "/v1/completions", b" " * (40 << 20), headers)
        answer = connection.getresponse()
        assert answer.status == 413 and b"10,000 bytes" in answer.read()


def test_headers_have_a_limit(locked: Running) -> None:
    lines = b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(80))
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n"
    answer = exchange(locked.port, head)
    assert answer.startswith(b"HTTP/1.1 431") and b'"error"' in answer


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
     b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
     b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_http(locked: Running, data: bytes) -> None:
    answer = exchange(locked.port, data + b"\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    assert b'"error"' in answer and len(answer) < 4500


def test_slow_clients_are_let_go(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from localllm.server import listen, security

    monkeypatch.setattr(listen, "HEADER_S", 0.2)
    monkeypatch.setattr(security, "BODY_CHUNK_S", 0.2)
    began = time.monotonic()
    whole = b"GET /v1/health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for first, begun in ((b"", b""), (b"", b"GET /health HTTP/1.1\r\nho"), (whole, b"GET /he")):
        with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as connection:
            connection.sendall(first)
            got = b""
            while first and not got.endswith(b"}"):
                got += connection.recv(1000)
            connection.sendall(begun)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1000) == b""
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n" % (
        KEYS[0].encode()
    )
    head += b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    assert exchange(locked.port, head).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began < 5


def test_programs_of_this_user_are_one_caller() -> None:
    one, other = (Access(keys=KEYS, own_key=key) for key in ("first-run", "second-run"))
    who = one.caller("first-run")
    assert who == other.caller("second-run") == OWN
    assert one.caller("second-run") is None and one.caller("") is None
    assert len({who, *map(one.caller, KEYS)}) == 1 + len(KEYS)


def test_other_machines_may_name_any_address() -> None:
    open_one = Access(host="0.0.0.0", keys=KEYS)
    assert open_one.knows_host("192.168.1.5") and not open_one.knows_host("evil.example")
    assert not Access().knows_host("192.168.1.5")
