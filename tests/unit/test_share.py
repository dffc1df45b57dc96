"""Sharing models and pulling them from a peer, over a real connection."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localllm.errors import DownloadError
from localllm.paths import Paths
from localllm.server import share
from localllm.server.share import Share
from localllm.store import wanted
from localllm.store.index import Store
from localllm.store.offer import Offer
from localllm.store.pull import pull_offer
from localllm.store.ref import parse
from localllm.store.sources import local, peer
from localllm.store.transfer.small import Small
from localllm.store.wanted import PeerName


@contextmanager
def sharing(store: Store, key: str | None = None) -> Iterator[Share]:
    server = Share(store, "127.0.0.1", 0, key)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def file(tiny: Callable[[str, str], Path]) -> Path:
    return tiny("llama", "Q4_0")


@pytest.fixture
def store(tmp_path: Path, file: Path) -> Store:
    """A store with one model that lies elsewhere."""
    store = Store(tmp_path / "theirs" / "models")
    offer = local.resolve(file, parse("mine:q4"))
    places = Paths(tmp_path / "theirs", tmp_path / "c", tmp_path / "d")
    pull_offer(offer, offer.ref, places, lambda progress: None)
    return store


def resolved(server: Share, name: str = "mine:q4", key: str = "") -> Offer:
    found = wanted.parse(f"http://127.0.0.1:{server.server_address[1]}/{name}")
    assert isinstance(found, PeerName)
    return peer.resolve(found, key)


def test_a_model_travels(store: Store, tmp_path: Path, file: Path) -> None:
    ours = Paths(tmp_path / "ours", tmp_path / "cache", tmp_path / "config")
    with sharing(store) as server:
        offer = resolved(server)
        model = pull_offer(offer, offer.ref, ours, lambda progress: None)
    assert model.path == ours.models / "mine@q4.gguf" and not model.elsewhere
    assert model.path.read_bytes() == file.read_bytes()
    assert model.record is not None
    assert model.record.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_names_as_at_home(store: Store, file: Path, tmp_path: Path) -> None:
    """Without a tag, or the host that the owner had it from; else what is shared is said."""
    places = Paths(tmp_path / "theirs", tmp_path / "c", tmp_path / "d")
    for name in ("hf.co/u/tiny:q4_0", "hf.co/u/other:q4_0", "hf.co/u/other:q8_0"):
        offer = local.resolve(file, parse(name))
        pull_offer(offer, offer.ref, places, lambda progress: None)
    with sharing(store) as server:
        for asked in ("u/tiny", "hf.co/u/tiny", "U/tiny:q4_0", "tiny"):
            assert str(resolved(server, asked).ref) == "hf.co/u/tiny:q4_0"
        assert str(resolved(server, "mine").ref) == "mine:q4"
        for asked, said in (
            ("u/other", "It shares: hf.co/u/other:q4_0, hf.co/u/other:q8_0"),
            (
                "ther",
                "It shares: hf.co/u/other:q4_0, hf.co/u/other:q8_0, hf.co/u/tiny:q4_0, mine:q4",
            ),
        ):
            with pytest.raises(DownloadError, match="shares no model called") as e:
                resolved(server, asked)
            assert e.value.hint == said
        server.only = frozenset({parse("mine:q4")})
        with pytest.raises(DownloadError) as e:
            resolved(server, "u/tiny")
        assert e.value.hint == "It shares: mine:q4"


def test_a_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with sharing(store, "secret") as server:
        with pytest.raises(DownloadError, match="asks for a key"):
            resolved(server)
        host = f"127.0.0.1:{server.server_address[1]}"
        expected = {"Authorization": "Bearer secret"}
        monkeypatch.setenv(peer.KEY_VARIABLE, f"a.example:1=other {host}=secret")
        assert resolved(server).files[0].locate().headers == expected
        # A key for another host, or for none, stays here.
        for value in ("secret", "127.0.0.1:1=secret", f"x{host}=secret", "==", f"{host}:secret"):
            monkeypatch.setenv(peer.KEY_VARIABLE, value)
            with pytest.raises(DownloadError, match="asks for a key") as caught:
                resolved(server)
            assert caught.value.hint and f"{peer.KEY_VARIABLE}={host}=KEY" in caught.value.hint
        monkeypatch.setenv(peer.KEY_VARIABLE, f"{host}=wrong")
        with pytest.raises(DownloadError, match="refuses the key"):
            resolved(server)
        assert resolved(server, key="secret").files[0].locate().headers == expected


def connected(server: Share, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_address[1]), 10)
    connection.sendall(sent)
    return connection


ASK = b"GET /localllm/models/mine%3Aq4 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_connections_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that send nothing do not shut others out for long, and are let go."""
    monkeypatch.setattr(share, "_MOST_EACH", 3)
    monkeypatch.setattr(share, "_REQUEST_S", 1.0)
    with sharing(store) as server:
        idle = [connected(server, sent) for sent in (b"", b"GET", ASK)]
        assert idle[2].recv(12) == b"HTTP/1.1 200"
        late = connected(server, ASK)
        answer = late.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 2" in answer
        late.close()
        resolved(server)  # asks again after a while, as it is told
        for connection in idle:  # each is closed from the other side
            while connection.recv(4096):
                pass
            connection.close()


def test_a_request_that_comes_byte_by_byte(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_REQUEST_S", 0.5)
    with sharing(store) as server, connected(server) as connection:
        began = time.monotonic()
        with pytest.raises(OSError):  # reset, or a broken pipe
            for byte in b"GET / HTTP/1.1\r\nX: " + b"x" * 10000:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - began < 10


def test_a_client_that_reads_nothing(
    store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "_BLOCK_S", 0.3)
    monkeypatch.setattr(share, "_MOST", 1)
    with (store.folder / "large.gguf").open("wb") as large:
        large.write(file.read_bytes())
        large.truncate(64 << 20)  # more than the system takes for a client
    with sharing(store) as server:
        slow = connected(server, ASK.replace(b"models/mine%3Aq4", b"files/large/0"))
        until = time.monotonic() + 10
        while not (served := server.served_bytes) or served != _later(server):
            assert time.monotonic() < until
        assert 0 < served < 64 << 20
        with connected(server, ASK) as other:  # the only place is free again
            assert other.recv(12) == b"HTTP/1.1 200"
        slow.close()


def _later(server: Share) -> int:
    time.sleep(0.6)
    return server.served_bytes


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 404),
        ("/localllm/models/mine%3Aq4", {}, 200),
        ("/localllm/models/none", {}, 404),
        ("/localllm/models/..%2f..%2fetc%2fpasswd", {}, 404),
        ("/localllm/models/%00", {}, 404),
        ("/localllm/files/mine%3Aq4/0", {}, 200),
        ("/localllm/files/mine%3Aq4/1", {}, 404),
        ("/localllm/files/mine%3Aq4/-1", {}, 404),
        ("/localllm/files/mine%3Aq4/0/../../x", {}, 404),
        ("/localllm/files/mine%3Aq4/0", {"Range": "bytes=4-7"}, 206),
        ("/localllm/files/mine%3Aq4/0", {"Range": "bytes=99999999999-"}, 416),
        ("/localllm/files/mine%3Aq4/0", {"Range": "bytes=7-4"}, 416),
        ("/localllm/files/mine%3Aq4/0", {"Range": "bytes=-4"}, 416),
        ("/localllm/models/mine%3Aq4", {"Origin": "http://evil.example"}, 403),
        ("/localllm/models/mine%3Aq4", {"Host": "evil.example:80"}, 403),
        ("/localllm/files/mine%3Aq4/0", {"Host": "evil.example"}, 403),
        ("/localllm/models/mine%3Aq4", {"Host": "[bad"}, 403),
        ("/localllm/models/mine%3Aq4", {"Host": "LOCALHOST:1"}, 200),
        ("/localllm/models/mine%3Aq4", {"Host": "[::1]:1"}, 200),
    ],
)
def test_requests(store: Store, path: str, headers: dict[str, str], status: int) -> None:
    with sharing(store) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
    assert answer.status == status
    if status == 206:
        assert len(body) == 4 and (answer.getheader("Content-Range") or "").startswith("bytes 4-7/")


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading(store: Store, verb: str) -> None:
    with sharing(store) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request(verb, "/localllm/models/mine%3Aq4")
        assert connection.getresponse().status == 501
        connection.close()


@pytest.mark.parametrize("sha256", ["no-digest", 7, ["x"]])
def test_a_wrong_digest_names_the_peer(monkeypatch: pytest.MonkeyPatch, sha256: object) -> None:
    row = {"size": 5, "sha256": sha256}
    texts = dict.fromkeys(("quantization", "architecture", "licence"), "")
    body = json.dumps({"files": [row], "settings": {}, **texts}).encode()
    monkeypatch.setattr(peer, "get", lambda *_: Small(200, {}, body))
    found = wanted.parse("http://127.0.0.1:9/a")
    assert isinstance(found, PeerName)
    with pytest.raises(DownloadError, match=r"the answer of 127\.0\.0\.1:9 .* is no digest"):
        peer.resolve(found)
