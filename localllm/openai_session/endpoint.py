"""Where a server is, and requests to it that can be ended from another thread."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from localllm import __version__
from localllm.errors import ArgumentError
from localllm.openai_session.refusals import refusal
from localllm.plain_text import escape_line
from localllm.server.client import ServerGoneError

_ENDS = ("/chat/completions", "/completions", "/models")
_MAX_BODY = 4 << 20


@dataclass(frozen=True)
class Endpoint:
    """url: up to where /models begins, without a slash. silence_s: how long a server may say
    nothing; a prompt may take as long as that to be read."""

    url: str
    key: str = field(default="", repr=False)
    connect_s: float = 10.0
    silence_s: float = 300.0

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def warning(self) -> str:
        """What to say of a key that anybody on the way can read; "" if there is none."""
        parts = urlsplit(self.url)
        if not self.key or parts.scheme == "https" or _is_here(parts.hostname or ""):
            return ""
        return f"the key goes to {self.host} over http, readable for others on the way"

    def get(self, path: str) -> Any:
        """The JSON that a server answers. Raises `ServerGoneError` and what `refusal` makes."""
        with self.answering(path) as answer:
            raw = answer.read(_MAX_BODY + 1)
        try:
            if len(raw) > _MAX_BODY:
                raise ValueError
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise ServerGoneError(
                f"{self.host} answered {path} with something that is no JSON",
                f"Is {self.url} the address of an OpenAI-style API? It often ends in /v1.",
            ) from None

    @contextlib.contextmanager
    def answering(
        self,
        path: str,
        body: Any = None,
        connected: Callable[[socket.socket], None] = lambda connection: None,
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer with status 200, to be read as it comes. connected: is told the connection
        before anything is asked."""
        parts = urlsplit(self.url)
        connection = self._connection(parts)
        try:
            with self._told():
                connection.connect()
            connection.sock.settimeout(self.silence_s)
            connected(connection.sock)
            with self._told():
                answer = self._asked(connection, parts.path + path, body)
            if answer.status != 200:
                with self._told():
                    raw = answer.read(_MAX_BODY)
                raise refusal(self.host, self.url, answer, raw, self.key)
            with self._told():
                yield answer
        finally:
            connection.close()

    def _asked(
        self, connection: http.client.HTTPConnection, path: str, body: Any
    ) -> http.client.HTTPResponse:
        headers = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "user-agent": f"localllm/{__version__}",
        }
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
            # It may have said why before it hung up.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, data, headers)
        return connection.getresponse()

    def _connection(self, parts: SplitResult) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self.connect_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self.connect_s)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the network does, in our words."""
        try:
            yield
        except TimeoutError as e:
            raise ServerGoneError(
                f"{self.host} says nothing any more", "Ask again, or see what the server is doing."
            ) from e
        except ssl.SSLCertVerificationError as e:
            raise ServerGoneError(
                f"the certificate of {self.host} is not to be trusted: {e.verify_message}",
                "SSL_CERT_FILE can name a file with the certificate of whoever signed it.",
            ) from e
        except ConnectionRefusedError as e:
            raise ServerGoneError(
                f"nobody listens at {self.host}", "Is the server running, and the port right?"
            ) from e
        except socket.gaierror as e:
            raise ServerGoneError(
                f"there is no host {self.host}", "Check the address of --url."
            ) from e
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as e:
            # A connection that another thread shut down fails in many ways.
            said = escape_line(str(e))[:200] or type(e).__name__
            raise ServerGoneError(f"the connection to {self.host} broke: {said}") from e


def endpoint_of(text: str, key: str = "") -> Endpoint:
    """From what somebody typed: a host and a port, or an address. Raises `ArgumentError`."""
    full = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(full)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        good = good and full.isprintable() and full.isascii() and " " not in full
    except ValueError:
        good = False
    if not good:
        raise ArgumentError(
            f"--url: {text[:80]!a} is no address of a server",
            "As in http://127.0.0.1:8000/v1",
        )
    if "@" in parts.netloc:
        raise ArgumentError(
            "--url: a name or a password has no place in the address",
            "A key is given with --api-key @FILE.",
        )
    path = parts.path.rstrip("/")
    for end in _ENDS:
        path = path.removesuffix(end)
    return Endpoint(f"{parts.scheme}://{parts.netloc}{path or '/v1'}", key)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
