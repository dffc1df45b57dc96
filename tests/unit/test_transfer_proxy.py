"""Proxies of the environment: used, gone around, and told where they cannot be used."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins.fault_server import FaultServer, gguf_noise
from stand_ins.transferring import FAST

from localllm.errors import DownloadError
from localllm.store.catalog import Part
from localllm.store.offer import Location
from localllm.store.sources import hub, index
from localllm.store.transfer.http import Fault, Route, Transport

NAMES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
BODY = gguf_noise(1000)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.add("/a.gguf", BODY)
        yield running


def get(url: str) -> bytes:
    transport = Transport(FAST)
    try:
        with transport.get(Route(Location(url)), 0, 1000) as answer:
            return b"".join(answer.blocks())
    finally:
        transport.close()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_an_http_proxy(server: FaultServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, server.url(""))
    with pytest.raises(DownloadError, match="answered 404 "):  # the proxy has seen it
        get("http://models.invalid/b.gguf")
    assert server.seen[-1].path == "http://models.invalid/b.gguf"


def test_an_encrypted_address_goes_through_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy sees the host and no path."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(4096).decode())
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{port}")
        with pytest.raises(Fault, match=r"the proxy refused models\.invalid: 407") as caught:
            get("https://models.invalid/b.gguf?key=1")
        thread.join(5)
    assert seen[0].startswith("CONNECT models.invalid:443 HTTP/1.1\r\n")
    assert "b.gguf" not in seen[0] and "secret" not in str(caught.value)


@pytest.mark.parametrize("around", ["127.0.0.1", "a.example,127.0.0.1", "*"])
def test_around_the_proxy(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with pytest.raises(Fault, match="cannot connect"):
        get(server.url("/a.gguf"))
    monkeypatch.setenv("NO_PROXY", around)
    assert get(server.url("/a.gguf")) == BODY


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "gopher://p.example:70", "ALL_PROXY names a proxy of the kind 'gopher'"),
        ("https_proxy", "http://[::1", "https_proxy holds no address of a proxy: '.::1'"),
        ("HTTP_PROXY", "http://me:secret@p.example:port", "HTTP_PROXY holds no address of a proxy"),
    ],
)
def test_a_proxy_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DownloadError, match=says) as caught:
        Transport(FAST)
    assert caught.value.hint and f"{name}=http://" in caught.value.hint
    assert "secret" not in caught.value.message


@pytest.fixture
def socks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package for it, even where it is installed."""
    import sys

    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5h://me:secret@127.0.0.1:1080")


SOCKS = r"ALL_PROXY names a SOCKS proxy \(socks5h://127.0.0.1:1080\), which needs packages"


@pytest.mark.usefixtures("socks")
def test_a_socks_proxy_is_told() -> None:
    with pytest.raises(DownloadError, match=SOCKS) as caught:
        Transport(FAST)
    assert caught.value.hint and "pip install socksio PySocks" in caught.value.hint


@pytest.mark.usefixtures("socks")
def test_a_socks_proxy_is_told_of_the_hub(tmp_path: Path) -> None:
    from huggingface_hub.utils import close_session

    close_session()  # made by an earlier test, before the proxy was named
    with pytest.raises(DownloadError, match=SOCKS):
        hub.Hub("http://127.0.0.1:9", None, tmp_path)


@pytest.mark.usefixtures("socks")
def test_a_socks_proxy_is_told_of_the_package_index() -> None:
    part = Part("p", "1", "p.whl", 1, "ab" * 32, "m", 1)
    said = ["ERROR: Exception:", "InvalidSchema: Missing dependencies for SOCKS support."]
    error = index._explain(part, said)
    assert error.message.startswith("ALL_PROXY names a SOCKS proxy")
