"""A file server on a local port that does wrong what a script tells it to, one fault a request."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_BLOCK = 8192


def gguf_noise(n_bytes: int, seed: int = 1) -> bytes:
    """Bytes that begin like a GGUF file and do not repeat."""
    return b"GGUF" + random.Random(seed).randbytes(n_bytes - 4)


@dataclass(frozen=True)
class Fault:
    """kind: a method of `_Answer`, without its `do_`. `value` and `text` mean what it says
    there."""

    kind: str
    value: float = 0
    text: str = ""


@dataclass
class Seen:
    """A request that came."""

    path: str
    range: str | None
    headers: dict[str, str]


@dataclass
class Served:
    """A file of the server. etag and modified: headers, left out where empty."""

    content: bytes
    etag: str = ""
    modified: str = ""
    ranges: bool = True
    length: bool = True  # else the body comes chunked and ranges are not known
    chunked: bool = True  # else, without a length, the end of the connection ends the body
    headers: dict[str, str] = field(default_factory=dict)


class FaultServer:
    """Serves files by path. Use as a context manager; `url(path)` is an address.

    script: faults for the next requests, in their order, then none; bytes_per_s: the pace of each
    answer; seen: all requests; sent: body bytes handed out, by path; on_request: called before each
    answer with the number of requests so far.
    """

    def __init__(self, host: str = "127.0.0.1", *, bytes_per_s: float = 0) -> None:
        self.files: dict[str, Served] = {}
        self.bytes_per_s = bytes_per_s
        self.seen: list[Seen] = []
        self.sent: dict[str, int] = {}
        self.on_request: Callable[[int], None] = lambda n: None
        self._script: list[Fault] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Tests read their own figures."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that went away is no news."""

        self._server = Server((host, 0), Handler)
        self.host, self.port = host, self._server.server_address[1]

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str, host: str | None = None) -> str:
        return f"http://{host or self.host}:{self.port}{path}"

    def add(self, path: str, content: bytes, **more: Any) -> str:
        """Serves `content`, with an ETag unless `more` says otherwise, and returns its address."""
        more.setdefault("etag", f'"{hashlib.sha256(content).hexdigest()[:16]}"')
        self.files[path] = Served(content, **more)
        return self.url(path)

    def play(self, script: Iterable[Fault]) -> None:
        """The faults of the next requests."""
        with self._lock:
            self._script = list(script)

    @property
    def n_left(self) -> int:
        """Faults that no request has met."""
        return len(self._script)

    @property
    def total_sent(self) -> int:
        return sum(self.sent.values())

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.seen.append(Seen(request.path, request.headers["Range"], dict(request.headers)))
            fault = self._script.pop(0) if self._script else None
            n = len(self.seen)
        self.on_request(n)
        served = self.files.get(request.path.partition("?")[0])
        try:
            _Answer(self, request, served, fault).give()
        except OSError:
            request.close_connection = True  # the client has gone

    def count(self, path: str, n_bytes: int) -> None:
        with self._lock:
            self.sent[path] = self.sent.get(path, 0) + n_bytes


class _Answer:
    """One answer: a right one, then bent by its fault."""

    def __init__(
        self,
        server: FaultServer,
        request: BaseHTTPRequestHandler,
        served: Served | None,
        fault: Fault | None,
    ) -> None:
        self.server, self.request, self.fault = server, request, fault
        self.status, self.body = 404, b""
        self.headers: dict[str, str] = {"Content-Length": "0"}
        self.stop_after: int | None = None  # bytes after which the connection is dropped
        self.wait_at: tuple[int, float] | None = None  # (bytes, seconds)
        self.bytes_per_s = server.bytes_per_s
        if served is not None:
            self._right(served)

    def _right(self, served: Served) -> None:
        size = len(served.content)
        self.served = served
        self.headers = {"Content-Type": "application/octet-stream", **served.headers}
        if served.etag:
            self.headers["ETag"] = served.etag
        if served.modified:
            self.headers["Last-Modified"] = served.modified
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.request.headers["Range"] or "")
        self.status, self.body = 200, served.content
        if asked and served.ranges and served.length:
            first, last = int(asked[1]), min(int(asked[2]), size - 1)
            if first >= size:
                self.do_status(Fault("status", 416))
                self.headers["Content-Range"] = f"bytes */{size}"
                return
            self.status, self.body = 206, served.content[first : last + 1]
            self.headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        if served.length:
            self.headers["Content-Length"] = str(len(self.body))
        elif served.chunked:
            self.headers["Transfer-Encoding"] = "chunked"

    def give(self) -> None:
        if self.fault is not None:
            getattr(self, f"do_{self.fault.kind}")(self.fault)
        request = self.request
        if self.status == 0:
            self._drop()
            return
        request.send_response(self.status)
        for name, value in self.headers.items():
            request.send_header(name, value)
        if self.stop_after is not None:
            request.send_header("Connection", "close")
        request.end_headers()
        chunked = "Transfer-Encoding" in self.headers
        for start in range(0, len(self.body), _BLOCK):
            block = self.body[start : start + _BLOCK]
            if self.wait_at and start <= self.wait_at[0] < start + _BLOCK:
                cut = self.wait_at[0] - start
                self._send(block[:cut], chunked)
                self.server.closing.wait(self.wait_at[1])
                block = block[cut:]
            if self.stop_after is not None and start + len(block) > self.stop_after:
                self._send(block[: max(0, self.stop_after - start)], chunked)
                self._drop()
                return
            self._send(block, chunked)
            if self.bytes_per_s:
                time.sleep(len(block) / self.bytes_per_s)
        if chunked:
            request.wfile.write(b"0\r\n\r\n")
        elif "Content-Length" not in self.headers:
            self._drop()

    def _send(self, block: bytes, chunked: bool) -> None:
        if not block:
            return
        self.request.wfile.write(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
        self.server.count(self.request.path.partition("?")[0], len(block))

    def _drop(self) -> None:
        self.request.wfile.flush()
        self.request.close_connection = True
        with contextlib.suppress(OSError):
            self.request.connection.shutdown(socket.SHUT_RDWR)

    def do_none(self, fault: Fault) -> None:
        """A right answer."""

    def do_refuse(self, fault: Fault) -> None:
        """The connection ends before an answer."""
        self.status = 0

    def do_cut(self, fault: Fault) -> None:
        """value: share of the body after which the connection ends."""
        self.stop_after = int(len(self.body) * fault.value)

    def do_stall(self, fault: Fault) -> None:
        """Half of the body, then nothing for `value` seconds."""
        self.wait_at = (len(self.body) // 2, fault.value)

    def do_drip(self, fault: Fault) -> None:
        """value: bytes a second, in small pieces, for at most a few seconds."""
        self.body, rest = self.body[:64], self.body[64:]
        self.headers["Content-Length"] = str(len(self.body) + len(rest))
        body, self.body = self.body, b""
        request, status, headers = self.request, self.status, self.headers
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        for byte in body:
            if self.server.closing.wait(1 / fault.value):
                break
            request.wfile.write(bytes([byte]))
        self.status = 0

    def do_corrupt(self, fault: Fault) -> None:
        """value: share of the body where one byte is another one."""
        if self.body:
            at = min(len(self.body) - 1, int(len(self.body) * fault.value))
            self.body = self.body[:at] + bytes([self.body[at] ^ 0x55]) + self.body[at + 1 :]

    def do_status(self, fault: Fault) -> None:
        """value: the status; text: Retry-After."""
        self.status, self.body = int(fault.value), b"no"
        self.headers = {"Content-Length": "2"}
        if fault.text:
            self.headers["Retry-After"] = fault.text

    def do_long(self, fault: Fault) -> None:
        """The length that is announced is longer than the body."""
        self.headers["Content-Length"] = str(len(self.body) + int(fault.value))
        self.stop_after = len(self.body)
        self.body += b"\0"

    def do_short(self, fault: Fault) -> None:
        """The length that is announced is shorter than the range that is announced."""
        self.body = self.body[: len(self.body) // 2]
        self.headers["Content-Length"] = str(len(self.body))

    def do_wrong_range(self, fault: Fault) -> None:
        """value: by how much the range is another one than was asked for."""
        sent = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.headers.get("Content-Range", ""))
        if sent:
            first, last, size = (int(each) for each in sent.groups())
            shift = min(int(fault.value), max(0, size - last - 1)) or -min(first, 7)
            first, last = first + shift, last + shift
            self.headers["Content-Range"] = f"bytes {first}-{last}/{size}"
            self.body = self.served.content[first : last + 1]

    def do_capped(self, fault: Fault) -> None:
        """A range that ends before what was asked for. value: its bytes."""
        sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", self.headers.get("Content-Range", ""))
        if sent:
            self.body = self.body[: int(fault.value) or 1]
            last = int(sent[1]) + len(self.body) - 1
            self.headers["Content-Range"] = f"bytes {sent[1]}-{last}/{sent[2]}"
            self.headers["Content-Length"] = str(len(self.body))

    def do_whole(self, fault: Fault) -> None:
        """200 and the whole file to a range."""
        if self.status == 206:
            self.status, self.body = 200, self.served.content
            del self.headers["Content-Range"]
            self.headers["Content-Length"] = str(len(self.body))

    def do_other(self, fault: Fault) -> None:
        """A part of another file of the same size, under another ETag."""
        self.headers["ETag"] = '"another"'
        self.body = bytes(byte ^ 0xFF for byte in self.body[:64]) + self.body[64:]
        if self.headers.get("Content-Range", "").startswith("bytes 0-"):
            self.body = b"GGUF" + self.body[4:]

    def do_redirect(self, fault: Fault) -> None:
        """text: where to."""
        self.status, self.body = 302, b""
        self.headers = {"Location": fault.text, "Content-Length": "0"}

    def do_gzip(self, fault: Fault) -> None:
        """A body that would be inflated a thousandfold. value: its MiB when inflated."""
        self.status, self.body = 200, gzip.compress(bytes(int(fault.value) << 20))
        self.headers = {
            "Content-Encoding": "gzip",
            "Content-Length": str(len(self.body)),
            "ETag": self.headers.get("ETag", '"none"'),
        }

    def do_empty(self, fault: Fault) -> None:
        """Success without a body."""
        self.status, self.body = 200, b""
        self.headers = {"Content-Length": "0"}

    def do_html(self, fault: Fault) -> None:
        """A page, as from a network that asks to sign in. text: its type."""
        self.status, self.body = 200, b"<!DOCTYPE html><html><body>Sign in</body></html>"
        self.headers = {
            "Content-Type": fault.text or "text/html; charset=utf-8",
            "Content-Length": str(len(self.body)),
        }

    def do_headers(self, fault: Fault) -> None:
        """A header that does not end. value: its bytes."""
        self.headers["X-Long"] = "x" * int(fault.value)


KINDS = tuple(name[3:] for name in vars(_Answer) if name.startswith("do_"))
