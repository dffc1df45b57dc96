"""Small documents of a server, such as manifests and lists: whole in memory, with a limit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from localllm.errors import DownloadError
from localllm.store.offer import Location
from localllm.store.transfer.http import Fault, Transport, public_address
from localllm.store.transfer.settings import Settings

#: Statuses of a server that has too much to do, or whose own server has.
BUSY = (429, 502, 503, 504)
#: Somebody waits at the screen: a document comes soon, or the server is down.
SOON = Settings(connect_s=10, stall_s=15, tries=3, first_wait_s=0.5, longest_asked_s=5)


@dataclass(frozen=True)
class Small:
    """An answer of any status."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def get(
    url: str, headers: Mapping[str, str], max_bytes: int, *, settings: Settings = SOON
) -> Small:
    """Asks for a document; a server that is busy or breaks off is asked again. headers go to the
    host of `url` alone. Raises `DownloadError` if there is no answer, or one longer than max_bytes.
    """
    transport = Transport(settings)
    try:
        wait = settings.first_wait_s
        for attempt in range(settings.tries):
            try:
                answer = _once(transport, Location(url, headers), max_bytes)
            except Fault as e:
                if attempt == settings.tries - 1:
                    hint = "Check the network." if e.unreachable else None
                    raise DownloadError(f"cannot get {public_address(url)}: {e}", hint) from e
            else:
                if answer.status not in BUSY or attempt == settings.tries - 1:
                    return answer
                asked = answer.headers.get("retry-after", "")
                wait = float(asked) if asked.isdigit() and len(asked) < 6 else wait
            time.sleep(min(wait, settings.longest_asked_s))
            wait *= 2
        raise AssertionError("the last attempt returns or raises")
    finally:
        transport.close()


def _once(transport: Transport, location: Location, max_bytes: int) -> Small:
    import httpx2

    response, url = transport.follow(location, None, 0, None)
    body = bytearray()
    try:
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise DownloadError(f"{url.host} sent a compressed answer, which was not asked for")
        for block in response.iter_raw():
            body += block
            if len(body) > max_bytes:
                raise DownloadError(
                    f"{public_address(str(url))} is longer than the {max_bytes:,} bytes that are "
                    "read of it"
                )
    except httpx2.TransportError as e:
        raise Fault(f"the connection to {url.host} broke: {str(e)[:200]}") from e
    finally:
        response.close()
    return Small(
        response.status_code,
        {name.lower(): value for name, value in response.headers.items()},
        bytes(body),
    )
