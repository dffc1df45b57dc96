from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localllm.errors import DownloadError
from localllm.store.transfer.settings import Settings
from localllm.store.transfer.small import get

QUICK = Settings(connect_s=5, stall_s=5, tries=3, first_wait_s=0.01, longest_asked_s=0.05)
Reply = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(*replies: Reply) -> Iterator[tuple[str, list[BaseHTTPRequestHandler]]]:
    """Answers one request after another; the last reply answers all that follow."""
    seen: list[BaseHTTPRequestHandler] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self)
            replies[min(len(seen), len(replies)) - 1](self)

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at `seen`."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}", seen
    finally:
        http.shutdown()
        http.server_close()


def reply(status: int, body: bytes = b"", length: int | None = None, **headers: str) -> Reply:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        request.wfile.write(body)

    return answer


def test_a_document_with_status_and_headers() -> None:
    with server(reply(401, b"no", WWW_Authenticate="Bearer x")) as (url, seen):
        answer = get(url, {"Accept": "a/b"}, 10, settings=QUICK)
    assert (answer.status, answer.body) == (401, b"no")
    assert answer.headers["www-authenticate"] == "Bearer x"
    assert seen[0].headers["Accept"] == "a/b"
    assert seen[0].headers["Accept-Encoding"] == "identity"


def test_a_busy_server_is_asked_again() -> None:
    with server(reply(503, Retry_After="1"), reply(200, b"x", length=9), reply(200, b"y")) as (
        url,
        seen,
    ):
        assert get(url, {}, 10, settings=QUICK).body == b"y"
    assert len(seen) == 3


def test_the_last_answer_of_a_busy_server_is_returned() -> None:
    with server(reply(429, b"later")) as (url, seen):
        assert get(url, {}, 10, settings=QUICK).status == 429
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (reply(200, b"x" * 11), "longer than the 10 bytes"),
        (reply(200, b"x", Content_Encoding="gzip"), "compressed"),
        (reply(302, Location="ftp://127.0.0.1/x"), "neither http nor https"),
    ],
)
def test_what_is_refused(answer: Reply, says: str) -> None:
    with server(answer) as (url, seen), pytest.raises(DownloadError, match=says):
        get(url, {}, 10, settings=QUICK)
    assert len(seen) == 1


def test_headers_stay_with_their_host() -> None:
    with server(reply(200, b"ok")) as (other, theirs):
        away = reply(302, Location=other.replace("127.0.0.1", "localhost"))
        with server(away) as (url, ours):
            answer = get(url, {"Authorization": "Bearer secret"}, 10, settings=QUICK)
    assert answer.body == b"ok"
    assert ours[0].headers["Authorization"] == "Bearer secret"
    assert theirs[0].headers["Authorization"] is None


def test_nobody_there() -> None:
    with server(reply(200)) as (url, _):
        pass
    with pytest.raises(DownloadError, match="cannot connect") as e:
        get(url + "/?token=secret", {}, 10, settings=QUICK)
    assert "secret" not in e.value.message
