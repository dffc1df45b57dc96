"""Asking a server of this user that runs on this machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from localllm.errors import LocalLLMError
from localllm.server.announced import Announced

CONNECT_S = 5.0
_LONGEST_REFUSAL = 1 << 16


class ServerGoneError(LocalLLMError):
    """A server could not be asked, or went away meanwhile."""


class RefusedError(LocalLLMError):
    """A server's own error. status: of HTTP; code: its word for it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def ask(server: Announced, path: str, body: Any = None, *, timeout_s: float = 60.0) -> Any:
    """The JSON answer of a server; POST where there is a body. Raises `ServerGoneError`,
    `RefusedError`."""
    with answering(server, path, body, timeout_s=timeout_s) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def answering(
    server: Announced, path: str, body: Any = None, *, timeout_s: float | None = None
) -> Iterator[http.client.HTTPResponse]:
    """The same for an answer that is read as it comes; leaving the block ends the connection."""
    connection = _connection(server)
    headers: Mapping[str, str] = {"authorization": f"Bearer {server.key}"} if server.key else {}
    try:
        connection.connect()
        connection.sock.settimeout(timeout_s)
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            data = json.dumps(body).encode()
            headers = {**headers, "content-type": "application/json"}
            connection.request("POST", path, data, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise _refusal(answer)
        yield answer
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise ServerGoneError(f"the server at {server.url} could not be asked: {e}") from e
    finally:
        connection.close()


def _connection(server: Announced) -> http.client.HTTPConnection:
    address = urlsplit(server.url)
    host, port = address.hostname or "", address.port
    if address.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S)
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(server.certificate)
    except OSError as e:
        raise ServerGoneError(f"the certificate of {server.url} cannot be read: {e}") from e
    # The certificate itself is known, whatever name it is for and whoever signed it.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context)


def _refusal(answer: http.client.HTTPResponse) -> RefusedError:
    try:
        error = json.loads(answer.read(_LONGEST_REFUSAL))["error"]
        return RefusedError(answer.status, str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return RefusedError(answer.status, "", f"the server answered {answer.status}")
