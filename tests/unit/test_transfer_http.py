"""Answers that are not what they claim to be, and tokens that stay where they belong."""

from __future__ import annotations

import email.utils
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from stand_ins import fault_server
from stand_ins.fault_server import FaultServer, gguf_noise
from stand_ins.transferring import FAST, faster

from localllm.errors import DownloadError
from localllm.store import catalog
from localllm.store.offer import Location
from localllm.store.sources import offer
from localllm.store.transfer import http
from localllm.store.transfer.http import Answer, Fault, Route, Transport
from localllm.store.transfer.settings import Settings
from localllm.store.wanted import parse

BODY = gguf_noise(50_000)
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.add("/a.gguf", BODY)
        yield running


def get(route: Route, first: int = 100, stop: int | None = 300, settings: Settings = FAST) -> bytes:
    transport = Transport(settings)
    try:
        with transport.get(route, first, stop) as answer:
            return b"".join(answer.blocks())
    finally:
        transport.close()


def route(url: str, **headers: str) -> Route:
    return Route(Location(url, headers))


def test_a_range_and_the_whole(server: FaultServer) -> None:
    assert get(route(server.url("/a.gguf"))) == BODY[100:300]
    assert get(route(server.url("/a.gguf")), 0, None) == BODY
    assert get(route(server.url("/a.gguf")), 49_990, 60_000) == BODY[49_990:]
    assert server.seen[0].headers["Accept-Encoding"] == "identity"
    assert server.seen[0].headers["User-Agent"].startswith("localllm/")


@pytest.mark.parametrize(
    ("fault", "said", "grave"),
    [
        (fault_server.Fault("gzip", 64), "compressed answer ('gzip')", True),
        (fault_server.Fault("wrong_range", 50), "another range", True),
        (fault_server.Fault("short"), "contradicts itself", True),
        (fault_server.Fault("long", 10), "contradicts itself", True),
        (fault_server.Fault("html"), "an HTML page instead of the file", True),
        (fault_server.Fault("cut", 0.5), "broke", False),
        (fault_server.Fault("refuse"), "broke", False),
        (fault_server.Fault("stall", 9), "sent nothing for 1 s", False),
        (fault_server.Fault("drip", 20), "bytes in 1 s", False),
        (fault_server.Fault("headers", 300_000), "broke", False),
        (fault_server.Fault("status", 416), "no such range", True),
        (fault_server.Fault("status", 503), "answered 503 (Service Unavailable)", False),
        (fault_server.Fault("status", 502), "answered 502", False),
    ],
    ids=lambda value: value.kind if isinstance(value, fault_server.Fault) else "",
)
def test_refused_by_name(
    server: FaultServer, fault: fault_server.Fault, said: str, grave: bool
) -> None:
    server.play([fault])
    settings = faster(stall_s=1) if fault.kind in ("stall", "drip") else FAST
    with pytest.raises(Fault, match=said.replace("(", r"\(").replace(")", r"\)")) as caught:
        get(route(server.url("/a.gguf")), settings=settings)
    assert caught.value.grave == grave
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "sent",
    ["", "bytes */50000", "bytes 100-299", "items 100-299/50000", "bytes 100-299/200",
     "bytes 299-100/50000", "bytes 100-300/50000", "bytes 99-299/50000",
     "bytes 100-299/" + "9" * 30],
)  # fmt: skip
def test_content_ranges_that_make_no_sense(server: FaultServer, sent: str) -> None:
    server.files["/a.gguf"].headers["X"] = "y"
    answers: list[str] = [sent]

    def bend(answer: fault_server._Answer, fault: fault_server.Fault) -> None:
        answer.headers["Content-Range"] = answers[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault_server._Answer, "do_none", bend)
        server.play([fault_server.Fault("none")])
        with pytest.raises(Fault) as caught:
            get(route(server.url("/a.gguf")))
    assert caught.value.grave


@pytest.mark.parametrize("status", [401, 403, 404, 410, 451, 418])
def test_what_no_repetition_changes(server: FaultServer, status: int) -> None:
    server.play([fault_server.Fault("status", status)])
    with pytest.raises(DownloadError, match=f"answered {status}") as caught:
        get(route(server.url("/a.gguf?signature=secret")))
    assert "secret" not in caught.value.message
    assert (caught.value.hint is not None) == (status in (401, 403, 404))


def test_an_address_that_has_worked_may_have_expired(server: FaultServer) -> None:
    used = route(server.url("/a.gguf"))
    get(used)
    server.play([fault_server.Fault("status", 403)])
    with pytest.raises(Fault) as caught:
        get(used)
    assert caught.value.look


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_how_long_a_server_asks_to_wait(server: FaultServer, form: str) -> None:
    asked = "90" if form == "seconds" else email.utils.formatdate(time.time() + 90, usegmt=True)
    server.play([fault_server.Fault("status", 429, asked)])
    with pytest.raises(Fault) as caught:
        get(route(server.url("/a.gguf")))
    assert caught.value.busy
    assert caught.value.after is not None and 60 < caught.value.after <= 91


@pytest.mark.parametrize("asked", ["", "soon", "-5", "9" * 400, "Mon, 99 Foo 2020"])
def test_a_wait_that_cannot_be_read(server: FaultServer, asked: str) -> None:
    server.play([fault_server.Fault("status", 429, asked)])
    with pytest.raises(Fault) as caught:
        get(route(server.url("/a.gguf")))
    assert caught.value.after is None


def test_a_token_goes_to_its_own_host_only(server: FaultServer) -> None:
    with FaultServer() as other:
        other.add("/b.gguf", BODY)
        elsewhere = other.url("/b.gguf", host="localhost")
        server.play([fault_server.Fault("redirect", text=elsewhere)])
        moved = route(server.url("/a.gguf"), **TOKEN)
        assert get(moved) == BODY[100:300]
        assert server.seen[-1].headers["Authorization"] == "Bearer secret"
        assert "Authorization" not in other.seen[-1].headers
        assert get(moved) == BODY[100:300]  # the second time straight to where it led
        assert len(server.seen) == 1 and "Authorization" not in other.seen[-1].headers
        # Another port of the same host is another host.
        server.play([fault_server.Fault("redirect", text=other.url("/b.gguf"))])
        assert get(route(server.url("/a.gguf"), **TOKEN)) == BODY[100:300]
        assert "Authorization" not in other.seen[-1].headers
        # There and back again: the way leads through a stranger, the host is its own.
        server.play([fault_server.Fault("redirect", text=elsewhere)])
        other.play([fault_server.Fault("redirect", text=server.url("/a.gguf"))])
        assert get(route(server.url("/a.gguf"), **TOKEN)) == BODY[100:300]
        assert "Authorization" not in other.seen[-1].headers


def test_cookies_go_nowhere(server: FaultServer) -> None:
    server.files["/a.gguf"].headers["Set-Cookie"] = "session=secret; Path=/"
    transport = Transport(FAST)
    for _ in range(2):
        with transport.get(route(server.url("/a.gguf")), 0, 10):
            pass
    transport.close()
    assert "Cookie" not in server.seen[-1].headers


def test_a_token_asked_for_on_another_host(server: FaultServer) -> None:
    with FaultServer() as other:
        other.play([fault_server.Fault("status", 401)])
        there = other.url("/b.gguf", host="localhost")
        server.play([fault_server.Fault("redirect", text=there)])
        with pytest.raises(DownloadError, match="answered 401") as caught:
            get(route(server.url("/a.gguf"), **TOKEN))
        assert caught.value.hint is not None and "not sent to a host" in caught.value.hint
        assert "Authorization" not in other.seen[-1].headers


def test_relative_redirects_and_circles(server: FaultServer) -> None:
    server.play([fault_server.Fault("redirect", text="a.gguf?again")])
    assert get(route(server.url("/a.gguf"), **TOKEN)) == BODY[100:300]
    assert server.seen[-1].headers["Authorization"] == "Bearer secret"
    server.play([fault_server.Fault("redirect", text=server.url("/a.gguf"))] * 20)
    with pytest.raises(DownloadError, match="redirects more than 10 times"):
        get(route(server.url("/a.gguf")))


@pytest.mark.parametrize("target", ["ftp://h/x", "file:///etc/passwd", "data:,x", "http://[::1"])
def test_redirects_to_nowhere(server: FaultServer, target: str) -> None:
    server.play([fault_server.Fault("redirect", text=target)])
    with pytest.raises(DownloadError):
        get(route(server.url("/a.gguf")))


def test_a_header_that_cannot_be_sent_is_not_quoted(server: FaultServer) -> None:
    with pytest.raises(DownloadError) as caught:
        get(route(server.url("/a.gguf"), Authorization="Bearer secret\r\nX: y"))
    assert "secret" not in str(caught.value)


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Fault, match="cannot connect") as caught:
        get(route(f"http://127.0.0.1:{port}/a.gguf"))
    assert caught.value.unreachable
    with pytest.raises(Fault, match=r"cannot connect to nobody\.invalid") as caught:
        get(route("http://nobody.invalid/a.gguf"))
    assert caught.value.unreachable


def test_etags_and_dates_that_name_a_content(server: FaultServer) -> None:
    transport = Transport(FAST)

    def answer(etag: str, modified: str) -> Answer:
        server.files["/a.gguf"].etag, server.files["/a.gguf"].modified = etag, modified
        with transport.get(route(server.url("/a.gguf")), 0, 10) as got:
            return got

    old, now = "Mon, 06 Jul 2020 10:00:00 GMT", email.utils.formatdate(time.time() + 5, usegmt=True)
    assert (answer('"x"', old).etag, answer('"x"', old).modified) == ('"x"', old)
    assert answer('W/"x"', "").etag == "" and answer("x", "").etag == ""
    assert answer("", now).modified == "" and answer("", "yesterday").modified == ""
    transport.close()


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[int, Path, list[bytes]]]:
    """A server with a certificate of its own: (port, certificate, what it answers)."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj",
               "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listening = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.recv(65536)
                    connection.sendall(answers[0])
            except OSError:
                continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1], cert, answers
    listening.close()


def test_certificates_and_the_way_down_to_http(
    encrypted: tuple[int, Path, list[bytes]],
    server: FaultServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, cert, answers = encrypted
    answers.append(b"HTTP/1.1 206 Yes\r\nContent-Range: bytes 100-103/500\r\n\r\nGGUF")
    address = f"https://localhost:{port}/a.gguf"
    with pytest.raises(DownloadError, match="certificate of localhost:") as caught:
        get(route(address))
    assert caught.value.hint is not None and "SSL_CERT_FILE" in caught.value.hint
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    assert get(route(address)) == b"GGUF"
    answers[0] = (
        f"HTTP/1.1 302 Moved\r\nLocation: {server.url('/a.gguf')}\r\nContent-Length: 0\r\n\r\n"
    ).encode()
    with pytest.raises(DownloadError, match="not encrypted"):
        get(route(address, **TOKEN))
    assert server.seen == []


def test_addresses_are_shown_without_secrets() -> None:
    shown = http.public_address("https://me:secret@host:8443/a/b.gguf?token=secret#x")
    assert shown == "https://host:8443/a/b.gguf"
    assert "\x00" not in http.public_address("http://a\x00b")


def test_a_slow_but_steady_connection_is_left_alone(server: FaultServer) -> None:
    server.bytes_per_s = 100_000
    transport = Transport(faster(stall_s=0.5, slowest_bytes_per_s=1000))
    with transport.get(route(server.url("/a.gguf")), 0, None) as answer:
        assert b"".join(answer.blocks()) == BODY
    transport.close()


def test_an_ipv6_server() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Host"])
            self.send_response(418)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    class Server(HTTPServer):
        address_family = socket.AF_INET6

    seen: list[str] = []
    try:
        server = Server(("::1", 0), Handler)
    except OSError:
        pytest.skip("this machine has no IPv6")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"[::1]:{server.server_address[1]}"
    try:
        with pytest.raises(DownloadError, match="answered 418") as peer_said:
            offer(parse(f"http://{host}/a"), catalog.load(), None)
        with pytest.raises(DownloadError, match="answered 418") as url_said:
            offer(parse(f"http://{host}/a.gguf"), catalog.load(), None)
    finally:
        server.shutdown()
        server.server_close()
    assert set(seen) == {host}
    for said in (peer_said, url_said):
        assert host in said.value.message
