"""Requests for ranges of a file, and answers that are what they claim to be.

Redirects are followed here, not by the client: headers of a location (a token) go to the scheme,
host and port of its own address and to no other, and an https address never leads to an http one.
Bodies are taken as they are on the wire; an answer in a content coding is refused, so nothing is
inflated. Proxies and certificates come from the environment, as httpx2 reads it."""

from __future__ import annotations

import contextlib
import email.utils
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from localllm.errors import DownloadError
from localllm.store.offer import Location
from localllm.store.transfer import proxy
from localllm.store.transfer.settings import Settings

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_LATER = (408, 425, 500, 502, 504, 520, 521, 522, 523, 524)
_EXPIRED = (400, 401, 403, 404, 410)  # what a signed address answers when its time is over
_DRAINED = 16384  # body bytes of a redirect that are read to keep its connection
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


class Fault(Exception):
    """An attempt failed, and another one may not.

    after: seconds that the server asked to wait; look: the address, the size or the ETag may have
    changed, so look at the file again; grave: waiting seldom mends it; busy: the server has too
    much to do; unreachable: there was no connection at all."""

    def __init__(
        self,
        text: str,
        *,
        after: float | None = None,
        look: bool = False,
        grave: bool = False,
        busy: bool = False,
        unreachable: bool = False,
    ) -> None:
        super().__init__(text)
        self.after, self.look, self.grave = after, look, grave
        self.busy, self.unreachable = busy, unreachable


class Route:
    """A location, and where its redirects have led so far."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.final: str | None = None


@dataclass
class Answer:
    """An answer of 200 or 206 whose body has not been read."""

    ranged: bool  # 206: the body is the range that was asked for, or its beginning
    n_bytes: int | None  # of the body; None where only its end tells
    total: int | None  # of the whole file
    etag: str  # a strong one, or empty
    modified: str  # Last-Modified where it is strong, or empty
    ends: bool  # the end of the body can be told from a connection that broke
    host: str
    response: httpx2.Response
    settings: Settings

    def blocks(self) -> Iterator[bytes]:
        """The body. Raises `Fault` if it stalls, breaks off, is short or too long."""
        import httpx2

        n, began, before = 0, time.monotonic(), 0
        try:
            for block in self.response.iter_raw():
                n += len(block)
                if self.n_bytes is not None and n > self.n_bytes:
                    raise Fault(f"{self.host} sent more than {self.n_bytes} bytes", grave=True)
                now = time.monotonic()
                if now - began >= self.settings.stall_s:
                    if n - before < self.settings.slowest_bytes_per_s * (now - began):
                        raise Fault(f"{self.host} sent {n - before} bytes in {now - began:.0f} s")
                    began, before = now, n
                yield block
        except httpx2.TransportError as e:
            raise _fault(e, self.host, self.settings) from e
        if self.n_bytes is not None and n < self.n_bytes:
            raise Fault(f"{self.host} ended after {n} of {self.n_bytes} bytes")

    def close(self) -> None:
        import httpx2

        with contextlib.suppress(httpx2.HTTPError):
            self.response.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Transport:
    """One client for all connections of a fetch. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        """Raises `DownloadError` for a proxy of the environment that cannot be used."""
        import httpx2

        from localllm import __version__

        self._settings = settings
        self._agent = f"localllm/{__version__}"
        n = settings.connections
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=n)
        with proxy.explained():
            self._client = httpx2.Client(follow_redirects=False, limits=limits)

    def close(self) -> None:
        self._client.close()

    def get(self, route: Route, first: int, stop: int | None) -> Answer:
        """Asks for bytes [first, stop), or for the whole file if `stop` is None.

        Raises `Fault`, or `DownloadError` for what no repetition changes.
        """
        response, url = self.follow(route.location, route.final, first, stop)
        try:
            if response.status_code not in (200, 206):
                self._refuse(response, url, route)
            answer = self._answer(response, url, first, stop)
        except BaseException:
            response.close()
            raise
        route.final = str(url)
        return answer

    def follow(
        self, location: Location, start: str | None, first: int, stop: int | None
    ) -> tuple[httpx2.Response, httpx2.URL]:
        """The answer at the end of all redirects, of any status, and where that is; its body has
        not been read. start: where earlier redirects have led. Raises as `get` does."""
        import httpx2

        try:
            home = httpx2.URL(location.url)
            url = httpx2.URL(start) if start else home
        except httpx2.InvalidURL as e:
            raise DownloadError(f"an address cannot be read: {e}") from e
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send(url, home, location, first, stop)
            target = response.headers.get("location")
            if response.status_code not in _REDIRECTS or not target:
                return response, url
            try:
                url = _redirected(url, target)
                _drain(response)
            finally:
                response.close()
        raise DownloadError(f"{_shown(home)} redirects more than {MAX_REDIRECTS} times")

    def _send(
        self, url: httpx2.URL, home: httpx2.URL, location: Location, first: int, stop: int | None
    ) -> httpx2.Response:
        import httpx2

        if url.scheme not in ("http", "https") or not url.host:
            raise DownloadError(f"the address {_shown(url)} is neither http nor https")
        headers = {"Accept": "*/*", "User-Agent": self._agent}
        if _origin(url) == _origin(home):
            headers.update(location.headers)
        headers["Accept-Encoding"] = "identity"
        if stop is not None:
            headers["Range"] = f"bytes={first}-{stop - 1}"
        settings = self._settings
        timeout = {
            "connect": settings.connect_s,
            "read": settings.stall_s,
            "write": settings.stall_s,
            "pool": settings.connect_s,
        }
        # A request of its own: none of the client's cookies go with it.
        request = httpx2.Request("GET", url, headers=headers, extensions={"timeout": timeout})
        try:
            return self._client.send(request, stream=True)
        except httpx2.UnsupportedProtocol as e:
            raise DownloadError(f"cannot fetch {_shown(url)}: {e}") from e
        except httpx2.TransportError as e:
            raise _fault(e, _host(url), settings) from e

    def _answer(
        self, response: httpx2.Response, url: httpx2.URL, first: int, stop: int | None
    ) -> Answer:
        host, headers = _host(url), response.headers
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise Fault(f"{host} sent a compressed answer ({coding[:40]!a})", grave=True)
        if headers.get("content-type", "").lower().startswith("text/html"):
            raise Fault(f"{host} sent an HTML page instead of the file", grave=True)
        length = headers.get("content-length")
        n_bytes = int(length) if length and length.isascii() and length.isdigit() else None
        ranged, total = response.status_code == 206, n_bytes
        if ranged:
            n_bytes, total = _range_sent(host, headers, n_bytes, first, stop)
        etag = headers.get("etag", "").strip()
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        return Answer(
            ranged=ranged,
            n_bytes=n_bytes,
            total=total,
            etag=etag if etag.startswith('"') and len(etag) <= 512 else "",
            modified=_strong_date(headers.get("last-modified"), headers.get("date")),
            ends=n_bytes is not None or chunked,
            host=host,
            response=response,
            settings=self._settings,
        )

    def _refuse(self, response: httpx2.Response, url: httpx2.URL, route: Route) -> NoReturn:
        status, host = response.status_code, _host(url)
        said = f"{host} answered {status}"
        if reason := response.headers.get("x-error-message") or response.reason_phrase:
            said += f" ({reason[:200]})"
        if status in (429, 503):
            raise Fault(said, after=_wait_asked(response.headers), busy=True)
        if status == 416:
            raise Fault(f"{said}: it has no such range", look=True, grave=True)
        if status in _LATER:
            raise Fault(said)
        if status in _EXPIRED and route.final is not None:
            raise Fault(said, look=True, grave=True)
        foreign = url.host != _host_of(route.location)
        hints = {
            401: f"{host} asks for a token, and tokens are not sent to a host that they were not "
            "made for."
            if foreign
            else "The file needs a token, or the token is wrong.",
            403: "Access was denied: on the model's page the licence may wait to be accepted.",
            404: "The file is not there: it may have been renamed or removed.",
        }
        raise DownloadError(f"{said} for {_shown(url)}", hints.get(status))


def _range_sent(
    host: str, headers: httpx2.Headers, length: int | None, first: int, stop: int | None
) -> tuple[int, int | None]:
    """(bytes of the body, bytes of the file) of a 206 answer to the range [first, stop)."""
    sent = headers.get("content-range", "")
    match = _RANGE.fullmatch(sent.strip())
    if stop is None or match is None:
        raise Fault(f"{host} sent a part without saying which ({sent[:60]!a})", grave=True)
    begin, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if begin != first or not first <= last < stop or (total is not None and last >= total):
        raise Fault(
            f"{host} sent another range: {sent[:60]!a}, asked for {first}-{stop - 1}", grave=True
        )
    if length is not None and length != last + 1 - begin:
        raise Fault(
            f"{host} contradicts itself: {length} bytes for the range {sent[:60]!a}", grave=True
        )
    return last + 1 - begin, total


def _redirected(url: httpx2.URL, target: str) -> httpx2.URL:
    import httpx2

    try:
        following = url.join(target)
    except httpx2.InvalidURL as e:
        raise DownloadError(f"{_host(url)} redirects to an address that cannot be read") from e
    if url.scheme == "https" and following.scheme != "https":
        raise DownloadError(
            f"{_host(url)} redirects to an address that is not encrypted: {_shown(following)}",
            "It was not followed. Use another source.",
        )
    return following


def _drain(response: httpx2.Response) -> None:
    """Reads a short body so that its connection can be used again."""
    import httpx2

    length = response.headers.get("content-length", "")
    with contextlib.suppress(httpx2.HTTPError):
        if length.isdigit() and int(length) <= _DRAINED:
            for _ in response.iter_raw():
                pass
        response.close()


def _fault(error: httpx2.TransportError, host: str, settings: Settings) -> Exception:
    """What a connection that failed means."""
    import httpx2

    cause: BaseException | None = error
    for _ in range(8):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DownloadError(
                f"the certificate of {host} is not trusted: {cause.verify_message}",
                "If your network has a certificate of its own, name its file in SSL_CERT_FILE.",
            )
        cause = (cause.__cause__ or cause.__context__) if cause else None
    if isinstance(error, httpx2.LocalProtocolError):  # its text may quote a token
        return DownloadError(f"the request to {host} has a header that cannot be sent")
    if isinstance(error, httpx2.ReadTimeout):
        return Fault(f"{host} sent nothing for {settings.stall_s:g} s")
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)):
        what = "the proxy refused" if isinstance(error, httpx2.ProxyError) else "cannot connect to"
        text = str(error)[:200] or f"no answer within {settings.connect_s:g} s"
        return Fault(f"{what} {host}: {text}", unreachable=True)
    return Fault(f"the connection to {host} broke: {str(error)[:200] or type(error).__name__}")


def _wait_asked(headers: httpx2.Headers) -> float | None:
    """Seconds of a Retry-After, which is a number or a date."""
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    with contextlib.suppress(ValueError, TypeError):
        until = email.utils.parsedate_to_datetime(value).timestamp()
        return max(0.0, until - time.time())
    return None


def _strong_date(modified: str | None, date: str | None) -> str:
    """Last-Modified if it names one content: it is older than the answer (RFC 9110, 8.8.2.2)."""
    with contextlib.suppress(ValueError, TypeError):
        changed = email.utils.parsedate_to_datetime(modified or "")
        answered = email.utils.parsedate_to_datetime(date or "")
        if (answered - changed).total_seconds() >= 1:
            return (modified or "").strip()[:100]
    return ""


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _host(url: httpx2.URL) -> str:
    host = f"[{url.host}]" if ":" in url.host else url.host
    return host if url.port is None else f"{host}:{url.port}"


def _host_of(location: Location) -> str:
    import httpx2

    return httpx2.URL(location.url).host


def _shown(url: httpx2.URL) -> str:
    """An address without what may be secret in it: user, password, query."""
    return f"{url.scheme}://{_host(url)}{url.path}"[:500]


def public_address(address: str) -> str:
    """The same for text; an address that cannot be read is only called that."""
    import httpx2

    try:
        return _shown(httpx2.URL(address))
    except httpx2.InvalidURL:
        return "an address that cannot be read"
