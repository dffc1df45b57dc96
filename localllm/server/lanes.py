"""Threads for what takes long with a request before an engine sees it: reading its body, rendering
its prompt, writing its tokens down.

Large bodies go one after another through a thread of their own, so that they hold no small request
up, and so that what is made of a body exists once: beside the requests' bodies this is at most
about 8 times the largest body, where that is one text of rare characters.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import Receive

from localllm.server.errors import RequestError

LARGE_BYTES = 1 << 15
"""Of a body. The work of a smaller one takes milliseconds."""

T = TypeVar("T")
Check = Callable[[], None]
"""To be called between the parts of a work: raises once nobody waits for it."""


class ClientLeftError(RequestError):
    """Nobody waits for the answer. The status is for the log."""

    def __init__(self) -> None:
        super().__init__("the client has left", code="client_left", status=499)


class Lanes:
    """Of one server."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(4, "small")
        self._large = ThreadPoolExecutor(1, "large")

    async def run(self, receive: Receive, n_bytes: int, work: Callable[[Check], T]) -> T:
        """What a work for a body of so many bytes gives. receive: of the request, whose body was
        read; when its client leaves, the work ends at its next check, or never begins."""
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise ClientLeftError

        def checked() -> T:
            check()
            return work(check)

        lane = self._large if n_bytes > LARGE_BYTES else self._small
        running: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(lane, checked)
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            either: set[asyncio.Future[Any]] = {running, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ClientLeftError
            return running.result()
        finally:
            left.set()
            gone.cancel()
            running.cancel()

    def close(self) -> None:
        for lane in (self._small, self._large):
            lane.shutdown(wait=False, cancel_futures=True)


async def client_gone(receive: Receive) -> None:
    """Returns when the client has left. Its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
