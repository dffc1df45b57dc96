"""The two servers that are compared, each a process of its own on a free port of this machine."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import rival_server
from benchmarks.load_client import Got, Sent

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0
_METRIC = re.compile(r"^localllm_(\w+)\{[^}]*\} ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """What clients saw of a run. client_share: CPU time of the clients over the wall time."""

    got: list[Got]
    wall_s: float
    client_share: float

    @property
    def tokens_per_s(self) -> float:
        """Over all answers, from the first request to the last token."""
        began = min(each.begin_s for each in self.got)
        return sum(each.n_tokens for each in self.got) / (self.last_s - began)

    @property
    def last_s(self) -> float:
        return max(each.end_s for each in self.got)

    @property
    def first_token_s(self) -> list[float]:
        return [each.first_s - each.begin_s for each in self.got]


class Server:
    """A running server. Raises RuntimeError with what it wrote if it does not answer."""

    def __init__(self, command: Sequence[str], port: int, env: dict[str, str] | None = None):
        self.port = port
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **(env or {})}
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Our own server's figures of this moment, by name."""
        text = self.get("/metrics")[1].decode()
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def load(self, requests: Sequence[Sent], n_clients: int) -> Load:
        """Lets clients send these, n_clients at a time. Raises RuntimeError if one is refused."""
        plan: dict[str, Any] = {
            "port": self.port,
            "path": "/v1/completions",
            "n_clients": n_clients,
            "requests": [vars(each) for each in requests],
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.load_client"],
            input=json.dumps(plan), capture_output=True, text=True, cwd=ROOT, check=True,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        got = [Got(**each) for each in answer["got"]]
        for each in got:
            if each.error:
                raise RuntimeError(f"a request was not answered: {each.error}")
        return Load(got, answer["wall_s"], answer["cpu_s"] / answer["wall_s"])

    def _wait(self) -> None:
        ends = time.monotonic() + START_S
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        told = self._log.read_bytes()[-2000:].decode(errors="replace")
        raise RuntimeError(f"the server did not start: {told}")


def ours(path: Path, home: Path, *, n_threads: int, n_parallel: int, n_ctx: int) -> Server:
    """home: where it keeps what it measures of steps."""
    port = _free_port()
    command = [sys.executable, "-m", "localllm", "serve", str(path), "--port", str(port)]
    command += ["--parallel", str(n_parallel), "--ctx", str(n_ctx)]
    command += ["--threads", str(n_threads)] if n_threads else []
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return Server(command, port, {"LOCALLLM_HOME": str(home), "PYTHONPATH": paths})


def rival(path: Path, *, n_threads: int, n_parallel: int, n_tokens: int, flash: bool) -> Server:
    """llama-server. n_tokens: of its cache, which all its slots share. What could cost time and
    serves nothing here is off: the web page, the list of slots, copies of prompts in memory."""
    port = _free_port()
    command = [str(rival_server.binary()), "--model", str(path), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--parallel", str(n_parallel), "--kv-unified"]
    command += ["--ctx-size", str(n_tokens), "--flash-attn", "on" if flash else "off"]
    command += ["--threads", str(n_threads), "--threads-batch", str(n_threads)]
    command += ["--cache-ram", "0", "--no-ui", "--no-slots", "--fit", "off", "--log-disable"]
    return Server(command, port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
