"""A Hub on a local port: repositories in memory, large files behind a redirect to another host
name, the error headers of the real one."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_POINTER_BYTES = 134
_CHUNK = 1 << 16
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_CDN = re.compile(r"/cdn/([0-9a-f]{64})")
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)")


@dataclass
class Repo:
    """A repository. Files of at least `lfs_bytes` are large ones, with a sha256."""

    files: dict[str, bytes]
    token: str | None = None  # who does not send it is turned away
    gated: bool = False  # turned away with the words of a gated repository, else as if missing
    lfs_bytes: int = 64
    card: dict[str, Any] = field(default_factory=dict)
    gguf: dict[str, Any] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        hashed = hashlib.sha1()
        for name, data in sorted(self.files.items()):
            hashed.update(f"{name};{_blob_id(data)};".encode())
        return hashed.hexdigest()

    def is_large(self, name: str) -> bool:
        return len(self.files[name]) >= self.lfs_bytes


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    method: str
    host: str  # of the Host header, without the port
    path: str
    authorization: str | None


class HubServer:
    """Serves `repos`. Use as a context manager. `url`: what HF_ENDPOINT is set to, on 127.0.0.1;
    large files come from localhost. moved: old names of repositories and the present ones; broken:
    statuses to answer with instead, by the beginning of a path; busy: how many requests to
    answer with 503 first; bomb: compressed bytes to answer with instead; seen: all requests."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.moved: dict[str, str] = {}
        self.broken: dict[str, int] = {}
        self.busy = 0
        self.bomb = b""
        self.seen: list[Seen] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Tests look at `seen`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.cdn = f"http://localhost:{self.port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        path, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        host = request.headers.get("Host", "").partition(":")[0]
        self.seen.append(Seen(request.command, host, path, request.headers.get("Authorization")))
        if self.busy > 0:
            self.busy -= 1
            return _send(request, 503, b"busy", Retry_After="0")
        if self.bomb:
            return _send(request, 200, self.bomb, Content_Encoding="gzip")
        for beginning, status in self.broken.items():
            if path.startswith(beginning):
                return _send(request, status, b'{"error": "broken"}')
        routes: list[tuple[re.Pattern[str], Callable[..., None]]] = [
            (_CDN, self._content),
            (_API, self._info),
            (_FILE, self._resolve),
        ]
        if path == "/api/models":
            return self._search(request, query)
        for pattern, route in routes:
            if match := pattern.fullmatch(path):
                return route(request, query, *match.groups())
        return _fail(request, 404, "", "no such route")

    def _search(self, request: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> None:
        word = query.get("search", [""])[0].lower()
        limit = int(query.get("limit", ["1000"])[0])
        found = [
            {
                **_about(name, repo),
                "downloads": 10 * len(repo.files),
                "likes": len(repo.files),
                "tags": ["gguf"],
            }
            for name, repo in self.repos.items()
            if word in name.lower()
        ]
        found.sort(key=lambda row: -row["downloads"])
        _send(request, 200, json.dumps(found[:limit]).encode())

    def _info(
        self,
        request: BaseHTTPRequestHandler,
        query: dict[str, list[str]],
        name: str,
        revision: str | None,
    ) -> None:
        if name in self.moved:
            rest = request.path.partition(f"/api/models/{name}")[2]
            return _send(request, 307, Location=f"/api/models/{self.moved[name]}{rest}")
        repo = self._allowed(request, name, revision)
        if repo is None:
            return None
        siblings = [_sibling(repo, file, "blobs" in query) for file in sorted(repo.files)]
        body = {**_about(name, repo), "siblings": siblings, "cardData": repo.card}
        if repo.gguf:
            body["gguf"] = repo.gguf
        return _send(request, 200, json.dumps(body).encode())

    def _resolve(
        self,
        request: BaseHTTPRequestHandler,
        query: dict[str, list[str]],
        name: str,
        revision: str,
        file: str,
    ) -> None:
        repo = self._allowed(request, name, revision)
        if repo is None:
            return None
        if file not in repo.files:
            return _fail(request, 404, "EntryNotFound", "Entry not found")
        data = repo.files[file]
        if not repo.is_large(file):
            return _send(request, 200, data, X_Repo_Commit=repo.commit, ETag=f'"{_blob_id(data)}"')
        sha256 = hashlib.sha256(data).hexdigest()
        return _send(
            request,
            302,
            X_Repo_Commit=repo.commit,
            X_Linked_Etag=f'"{sha256}"',
            X_Linked_Size=str(len(data)),
            ETag=f'"{_blob_id(data)}"',
            Location=f"{self.cdn}/cdn/{sha256}",
        )

    def _content(
        self, request: BaseHTTPRequestHandler, query: dict[str, list[str]], sha256: str
    ) -> None:
        for repo in self.repos.values():
            for data in repo.files.values():
                if hashlib.sha256(data).hexdigest() == sha256:
                    return _send_range(request, data, f'"{sha256}"')
        return _fail(request, 404, "", "no such content")

    def _allowed(
        self, request: BaseHTTPRequestHandler, name: str, revision: str | None
    ) -> Repo | None:
        repo = self.repos.get(name)
        given = request.headers.get("Authorization")
        if repo is None:
            _fail(request, 404 if given else 401, "RepoNotFound", "Repository not found")
        elif repo.token is not None and given != f"Bearer {repo.token}":
            code = "GatedRepo" if repo.gated else "RepoNotFound"
            _fail(request, 403 if given else 401, code, "Access is restricted")
        elif revision not in (None, "main", repo.commit):
            _fail(request, 404, "RevisionNotFound", "Invalid revision")
        else:
            return repo
        return None


def _about(name: str, repo: Repo) -> dict[str, Any]:
    return {
        "_id": "0" * 24,
        "id": name,
        "modelId": name,
        "sha": repo.commit,
        "private": False,
        "gated": "manual" if repo.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": ["gguf"],
        "lastModified": "2026-01-01T00:00:00.000Z",
        "createdAt": "2026-01-01T00:00:00.000Z",
    }


def _sibling(repo: Repo, name: str, with_blobs: bool) -> dict[str, Any]:
    data = repo.files[name]
    row: dict[str, Any] = {"rfilename": name}
    if with_blobs:
        row |= {"size": len(data), "blobId": _blob_id(data)}
        if repo.is_large(name):
            sha256 = hashlib.sha256(data).hexdigest()
            row["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": _POINTER_BYTES}
    return row


def _blob_id(data: bytes) -> str:
    """As git names a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _send_range(request: BaseHTTPRequestHandler, data: bytes, etag: str) -> None:
    match = _RANGE.fullmatch(request.headers.get("Range", ""))
    if match is None:
        return _send(request, 200, data, ETag=etag, Accept_Ranges="bytes")
    first, last = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
    if first > last:
        return _send(request, 416, Content_Range=f"bytes */{len(data)}")
    where = f"bytes {first}-{last}/{len(data)}"
    return _send(request, 206, data[first : last + 1], ETag=etag, Content_Range=where)


def _fail(request: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    _send(request, status, body, X_Error_Code=code, X_Error_Message=message)


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        for start in range(0, len(body), _CHUNK):
            request.wfile.write(body[start : start + _CHUNK])
