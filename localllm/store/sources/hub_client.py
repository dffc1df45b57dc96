"""The Hub's own client, told to report nothing, to read no more than an answer can need, and to ask
again where the Hub has too much to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from localllm.errors import DownloadError
from localllm.store.transfer import proxy
from localllm.store.transfer.settings import Settings
from localllm.store.transfer.small import BUSY, SOON

if TYPE_CHECKING:
    import httpx2

MAX_ANSWER_BYTES = 8 << 20  # a listing of 20,000 files
T = TypeVar("T")


def library() -> ModuleType:
    """The client, imported when it is needed. It reads the environment when it is loaded, which
    another library may have done before."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    client: ModuleType = huggingface_hub
    with proxy.explained():
        session = client.utils.get_session()
    hooks = session.event_hooks
    if _bound not in hooks["response"]:
        session.event_hooks = {
            "request": [*hooks["request"], _ask_plain],
            "response": [*hooks["response"], _bound],
        }
    return client


def patiently(ask: Callable[[], T], settings: Settings = SOON) -> T:
    """What `ask` returns; where the Hub is busy, it is called again, after the time that the Hub
    asks to wait. Raises the client's own error when that was one time too many."""
    errors = library().errors
    wait = settings.first_wait_s
    for _ in range(settings.tries - 1):
        try:
            return ask()
        except errors.HfHubHTTPError as e:
            if e.response is None or e.response.status_code not in BUSY:
                raise
            asked = retry_after(e.response)
            if asked is not None and asked > settings.longest_asked_s:
                raise
            time.sleep(wait if asked is None else asked)
            wait *= 2
    return ask()


def retry_after(response: httpx2.Response) -> float | None:
    """Seconds that an answer asks to wait, if it does."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else None


def _ask_plain(request: httpx2.Request) -> None:
    request.headers["Accept-Encoding"] = "identity"


def _bound(response: httpx2.Response) -> None:
    """A few megabytes that are compressed can be gigabytes in memory."""
    import httpx2

    host = response.request.url.host
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise DownloadError(f"{host} sent a compressed answer, which was not asked for")

    class Bounded(httpx2.SyncByteStream):
        def __init__(self, stream: httpx2.SyncByteStream) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            n_bytes = 0
            for block in self._stream:
                n_bytes += len(block)
                if n_bytes > MAX_ANSWER_BYTES:
                    raise DownloadError(
                        f"an answer of {host} is longer than the {MAX_ANSWER_BYTES:,} bytes that "
                        "are read of it"
                    )
                yield block

        def close(self) -> None:
            self._stream.close()

    if isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = Bounded(response.stream)
