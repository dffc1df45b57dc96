"""Models of this machine for other localllms in the network, to read and nothing else.

Three paths are answered: the names of the models, what one consists of, and the bytes of one of its
files, in ranges. A name from outside is parsed as a name of the store and looked up there; it never
becomes a path. Connections are counted, and none may stand still: a slow client takes up its own.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import ipaddress
import json
import re
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from localllm.errors import LocalLLMError
from localllm.store import ref
from localllm.store.index import Model, Store
from localllm.store.sources.peer import FILE_PATH, LIST_PATH, MODEL_PATH, MOST_NAMES

_BLOCK = 1 << 16
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})", re.ASCII)
_MOST, _MOST_EACH = 64, 16  # connections at once, and of one address
_REQUEST_S = 30  # within which a request is whole, from the end of the one before
_BLOCK_S = 60  # within which a block is taken


class Share(ThreadingHTTPServer):
    """Serves the models of a store until `shutdown`. key: what clients must send, None for none;
    only: the names that are shared, None for all."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        store: Store,
        host: str,
        port: int,
        key: str | None,
        only: frozenset[ref.Ref] | None = None,
    ) -> None:
        self.store, self.key, self.only, self.host = store, key, only, host
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.served_bytes = 0
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()  # connections by address
        super().__init__((host, port), _Handler)

    def shared(self) -> list[Model]:
        """The models that others may have."""
        return [
            model
            for model in self.store.list()
            if model.problem is None and (self.only is None or model.ref in self.only)
        ]

    def process_request(self, request: Any, client_address: Any) -> None:
        address = str(client_address[0])
        with self._lock:
            is_free = self._open.total() < _MOST and self._open[address] < _MOST_EACH
            self._open[address] += is_free
        if not is_free:
            _turn_away(request)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread for it
            self._ended(address)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(str(client_address[0]))

    def _ended(self, address: str) -> None:
        with self._lock:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that vanishes is nobody's fault."""


def _turn_away(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.settimeout(0.05)
        request.recv(_BLOCK)  # what is not read breaks the connection before the answer is
        request.sendall(
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\n"
            b"Connection: close\r\n\r\n"
        )


class _Requests(io.RawIOBase):
    """What a client sends, each request within its time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.until = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(0.001, self.until - time.monotonic()))
        return self._connection.recv_into(buffer)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Share
    server_version = "localllm"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._requests = _Requests(self.connection)
        self.rfile = io.BufferedReader(self._requests)

    def handle_one_request(self) -> None:
        self._requests.until = time.monotonic() + _REQUEST_S
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """What others fetch is not written down."""

    def _answer(self, *, body: bool) -> None:
        self.connection.settimeout(_BLOCK_S)
        try:
            self._require_host()
            self._require_key()
            path = urlsplit(self.path).path
            if path == LIST_PATH:
                names = sorted(str(model.ref) for model in self.server.shared())
                self._send(200, {"models": names[:MOST_NAMES]}, body)
            elif path.startswith(MODEL_PATH):
                self._describe(self._model(path.removeprefix(MODEL_PATH)), body)
            elif path.startswith(FILE_PATH):
                name, _, number = path.removeprefix(FILE_PATH).partition("/")
                self._send_file(self._model(name), number, body)
            else:
                raise _Refused(404, "there is nothing here")
        except _Refused as e:
            self._send(e.status, {"error": str(e)}, body)

    def _require_host(self) -> None:
        """Where no key protects the models, only requests that name an address or this machine:
        the page of a site whose name was made to lead here (DNS rebinding) sends that name."""
        if self.server.key is not None:
            return
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            host = ""
        if host == "localhost" or host == self.server.host.lower():
            return
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise _Refused(403, "requests under this host name are not answered") from None

    def _require_key(self) -> None:
        # A page of another site sends an Origin when it reads from here; we never do.
        if self.headers.get("Origin") is not None:
            raise _Refused(403, "requests of web pages are not answered")
        if self.server.key is None:
            return
        sent = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(sent, f"Bearer {self.server.key}".encode()):
            raise _Refused(401, "the key is missing or wrong")

    def _model(self, name: str) -> Model:
        try:
            asked = ref.parse(unquote(name))
            is_shared = self.server.only is None or asked in self.server.only
            model = self.server.store.find(asked) if is_shared else None
        except LocalLLMError as e:
            raise _Refused(404, e.message) from e
        if model is None or model.problem is not None:
            raise _Refused(404, "no such model is shared")
        return model

    def _describe(self, model: Model, body: bool) -> None:
        record = model.record
        sizes = [path.stat().st_size for path in model.files]
        hashes = [""] * len(sizes)
        if record and len(record.files) == len(sizes):
            hashes = [file.sha256 for file in record.files]
        elif record and len(sizes) == 1:
            hashes = [record.sha256]
        self._send(
            200,
            {
                "name": str(model.ref),
                "files": [
                    {"size": size, "sha256": sha256}
                    for size, sha256 in zip(sizes, hashes, strict=True)
                ],
                "quantization": record.quantization if record else "",
                "architecture": record.architecture if record else "",
                "licence": record.licence if record else "",
                "settings": record.settings.document() if record else {},
            },
            body,
        )

    def _send_file(self, model: Model, number: str, body: bool) -> None:
        files = model.files
        if not re.fullmatch(r"[0-9]{1,3}", number, re.ASCII) or int(number) >= len(files):
            raise _Refused(404, "no such file is shared")
        path = files[int(number)]
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                first, stop, ranged = self._range(size)
                self.send_response(206 if ranged else 200)
                if ranged:
                    self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{size}")
                self.send_header("Content-Length", str(stop - first))
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{_mark(path)}"')
                self.end_headers()
                if body:
                    self._copy(file, first, stop)
        except OSError as e:
            self.close_connection = True
            if not isinstance(e, (ConnectionError, TimeoutError)):
                raise _Refused(404, "the file cannot be read") from e

    def _range(self, size: int) -> tuple[int, int, bool]:
        asked = self.headers.get("Range")
        if asked is None:
            return 0, size, False
        match = _RANGE.fullmatch(asked.strip())
        first = int(match[1]) if match else size
        last = min(size, int(match[2]) + 1 if match and match[2] else size)
        if match is None or first >= last:
            raise _Refused(416, f"the file has {size} bytes")
        return first, last, True

    def _copy(self, file: Any, first: int, stop: int) -> None:
        file.seek(first)
        while first < stop:
            block = file.read(min(_BLOCK, stop - first))
            if not block:  # the file was cut short meanwhile: the client sees a broken answer
                self.close_connection = True
                return
            self.wfile.write(block)
            first += len(block)
            self.server.served_bytes += len(block)

    def _send(self, status: int, document: Any, body: bool) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def _mark(path: Path) -> str:
    """Changes with the content of a file, as far as its times tell."""
    stat = path.stat()
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}"
