"""A package index on a local port, as slow and as broken as a test asks for."""

from __future__ import annotations

import re
import threading
import time
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 16384


class IndexServer:
    """Serves the wheels of a folder. Use as a context manager; `url` is the index to name to pip.

    bytes_per_s: the pace of every answer; cut_after: bytes after which a connection is dropped;
    modern: it sends metadata (PEP 658) and ranges, as large indexes do; hangs: it never answers;
    sent: body bytes of wheels handed out, by file name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        bytes_per_s: float = 0,
        cut_after: int | None = None,
        modern: bool = False,
        hangs: bool = False,
    ) -> None:
        self.folder, self.bytes_per_s, self.cut_after = folder, bytes_per_s, cut_after
        self.modern, self.hangs = modern, hangs
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
        if self.hangs:
            time.sleep(60)
        if name.endswith(".whl"):
            self._send_wheel(request, name)
            return
        if name.endswith(".metadata"):
            self._send_page(request, _metadata(self.folder / name.removesuffix(".metadata")))
            return
        found = [
            wheel.name
            for wheel in sorted(self.folder.glob("*.whl"))
            if wheel.name.split("-")[0].replace("_", "-") == name
        ]
        if not found:
            request.send_error(404)
            return
        extra = ' data-core-metadata="true"' if self.modern else ""
        links = "".join(f'<a href="/files/{wheel}"{extra}>{wheel}</a>' for wheel in found)
        self._send_page(request, f"<!DOCTYPE html><html><body>{links}</body></html>".encode())

    def _send_page(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/html")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _send_wheel(self, request: BaseHTTPRequestHandler, name: str) -> None:
        body = (self.folder / name).read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if self.modern and asked:
            first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            body = body[first : last + 1]
        else:
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


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return archive.read(name)
