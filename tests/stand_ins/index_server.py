"""A package index on a local port, as slow and as broken as a test asks for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 16384


class IndexServer:
    """Serves the wheels of a folder. Use as a context manager; `url` is the index to name to pip.

    bytes_per_s: the pace of every answer; cut_after: bytes after which a connection is dropped;
    sent: body bytes of wheels handed out, by file name.
    """

    def __init__(
        self, folder: Path, *, bytes_per_s: float = 0, cut_after: int | None = None
    ) -> None:
        self.folder, self.bytes_per_s, self.cut_after = folder, bytes_per_s, cut_after
        self.sent: Counter[str] = Counter()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Tests read their own figures."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/simple/"

    def __enter__(self) -> IndexServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rstrip("/").rsplit("/", 1)[-1]
        if name.endswith(".whl"):
            self._send_wheel(request, name)
            return
        found = [
            wheel.name
            for wheel in sorted(self.folder.glob("*.whl"))
            if wheel.name.split("-")[0].replace("_", "-") == name
        ]
        if not found:
            request.send_error(404)
            return
        links = "".join(f'<a href="/files/{wheel}">{wheel}</a>' for wheel in found)
        body = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        request.send_response(200)
        request.send_header("Content-Type", "text/html")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _send_wheel(self, request: BaseHTTPRequestHandler, name: str) -> None:
        body = (self.folder / name).read_bytes()
        request.send_response(200)
        request.send_header("Content-Type", "application/octet-stream")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        for start in range(0, len(body), _CHUNK):
            chunk = body[start : start + _CHUNK]
            if self.cut_after is not None and start >= self.cut_after:
                request.close_connection = True
                request.connection.close()
                return
            try:
                request.wfile.write(chunk)
            except OSError:
                return  # the client has gone
            self.sent[name] += len(chunk)
            if self.bytes_per_s:
                time.sleep(len(chunk) / self.bytes_per_s)
