"""Clients of a completions server, in a process of their own: a plan in, times out.

`python -m benchmarks.load_client` reads one JSON document from its standard input and writes one.
Answers are streamed, a connection each; nothing of them is parsed while they come, so that the
clients cost next to nothing beside the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

_STATUS = re.compile(rb"HTTP/1\.[01] (\d+)")
_N_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
_N_CACHED = re.compile(rb'"cached_tokens":\s*(\d+)')
_TOKEN_IDS = re.compile(rb'"token_ids":\s*\[([^\]]*)\]')
_EVENT = b"data: "


@dataclass
class Sent:
    """One request. delay_s: from the beginning of the run. body: what is posted."""

    body: dict[str, Any]
    delay_s: float = 0.0


@dataclass
class Got:
    """Seconds since the beginning of the run. events: (when, tokens), where the answer says which
    tokens an event holds; cached_tokens -1: the answer does not say."""

    begin_s: float = 0.0
    first_s: float = 0.0
    end_s: float = 0.0
    n_tokens: int = 0
    cached_tokens: int = -1
    error: str = ""
    events: list[tuple[float, int]] = field(default_factory=list)


class _Stream(asyncio.Protocol):
    """Notes when data came; reads it when the answer has ended."""

    def __init__(self, request: bytes, began_s: float) -> None:
        self._request, self._began_s = request, began_s
        self._parts: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        self.got = Got()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter() - self._began_s
        if not self.got.first_s and _EVENT in data:
            self.got.first_s = now
        self._parts.append((now, data))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(self._read(error))

    def _read(self, error: Exception | None) -> Got:
        whole = b"".join(data for _, data in self._parts)
        status = _STATUS.match(whole)
        counts = _N_TOKENS.findall(whole)
        if error or not status or status[1] != b"200" or not counts:
            self.got.error = f"{error or ''} {whole[:300]!r} ... {whole[-200:]!r}"
            return self.got
        self.got.end_s = self._parts[-1][0]
        self.got.n_tokens = int(counts[-1])
        cached = _N_CACHED.findall(whole)
        self.got.cached_tokens = int(cached[-1]) if cached else -1
        rest = b""
        for now, data in self._parts:
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            found = [m[1] for line in lines for m in _TOKEN_IDS.finditer(line)]
            n = sum(ids.count(b",") + 1 for ids in found if ids.strip())
            if n:
                self.got.events.append((now, n))
        return self.got


def _http(port: int, path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data


async def run(port: int, path: str, requests: list[Sent], n_clients: int) -> list[Got]:
    """Sends all requests, n_clients at a time, in their order."""
    loop = asyncio.get_running_loop()
    texts = [_http(port, path, request.body) for request in requests]
    got: list[Got] = [Got() for _ in requests]
    following = iter(range(len(requests)))
    began = time.perf_counter()

    async def client() -> None:
        for i in following:
            wait = requests[i].delay_s - (time.perf_counter() - began)
            if wait > 0:
                await asyncio.sleep(wait)
            begin = time.perf_counter() - began
            text = texts[i]
            _, stream = await loop.create_connection(
                lambda text=text: _Stream(text, began),  # type: ignore[misc]
                "127.0.0.1",
                port,
            )
            got[i] = await stream.ended
            got[i].begin_s = begin

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return got


def main() -> None:
    plan = json.load(sys.stdin)
    requests = [Sent(**each) for each in plan["requests"]]
    began, cpu = time.perf_counter(), time.process_time()
    got = asyncio.run(run(plan["port"], plan["path"], requests, plan["n_clients"]))
    wall_s = time.perf_counter() - began
    answer = {
        "got": [asdict(each) for each in got],
        "wall_s": wall_s,
        "cpu_s": time.process_time() - cpu,
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
