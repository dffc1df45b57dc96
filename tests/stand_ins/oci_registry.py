"""Debian's docker-registry on a local port, and what pushes models to it."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

PROGRAM = "docker-registry"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_READY_S = 20


def is_here() -> bool:
    return shutil.which(PROGRAM) is not None


class OciRegistry:
    """Use as a context manager; `address` is host:port. What it stores lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.address}"

    def __enter__(self) -> OciRegistry:
        config = self.folder / "config.yml"
        config.write_text(
            "version: 0.1\n"
            "log: {level: error}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder / 'data'}}}}}\n"
            f"http: {{addr: {self.address}}}\n"
        )
        self._process = subprocess.Popen(
            [PROGRAM, "serve", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + _READY_S
        while True:
            try:
                urlopen(f"{self.url}/v2/", timeout=5).close()
                return self
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    self._process.kill()
                    raise
                time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def push_blob(self, repository: str, data: bytes) -> str:
        """Its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        start = Request(f"{self.url}/v2/{repository}/blobs/uploads/", method="POST")
        with urlopen(start, timeout=20) as answer:
            place = answer.headers["Location"]
        place += ("&" if "?" in place else "?") + f"digest={quote(digest)}"
        put = Request(place, data=data, method="PUT")
        put.add_header("Content-Type", "application/octet-stream")
        urlopen(put, timeout=60).close()
        return digest

    def push(
        self,
        repository: str,
        tag: str,
        layers: list[tuple[str, bytes]],
        config: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """Pushes a manifest with (media type, content) layers; returns its digest."""

        def layer(kind: str, data: bytes) -> dict[str, Any]:
            return {
                "mediaType": kind,
                "size": len(data),
                "digest": self.push_blob(repository, data),
                **({"annotations": dict(annotations)} if annotations else {}),
            }

        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": layer(
                "application/vnd.docker.container.image.v1+json",
                json.dumps(config or {}).encode(),
            ),
            "layers": [layer(kind, data) for kind, data in layers],
        }
        put = Request(
            f"{self.url}/v2/{repository}/manifests/{tag}",
            data=json.dumps(document).encode(),
            method="PUT",
        )
        put.add_header("Content-Type", MANIFEST)
        with urlopen(put, timeout=20) as answer:
            return str(answer.headers["Docker-Content-Digest"])
