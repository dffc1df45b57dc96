"""A session over OpenAI's API: our own server, and one that misbehaves in every way."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins.api_server import serving
from stand_ins.openai_server import DONE, Part, delta, event, head, scripted
from stand_ins.server_process import served

from localllm.errors import (
    ArgumentError,
    ContextFullError,
    FileError,
    LocalLLMError,
    OutOfMemoryError,
    QueueFullError,
)
from localllm.openai_session import Endpoint, OpenAISession, Served, endpoint_of, served_models
from localllm.openai_session.refusals import KeyRefusedError
from localllm.params import GenerateParams
from localllm.server.client import ServerGoneError
from localllm.server.file_loader import FileLoader
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile, OpenOptions
from localllm.server.security import Access
from localllm.server.shelf import Item, Shelf
from localllm.session import Chunk, Session

KEY = "sk-a-key-that-is-secret"
PARAMS = GenerateParams(seed=5, temperature=0.9, max_tokens=24, top_k=20)
ASKED = [{"role": "user", "content": "hello"}]
NASTY = "\x1b[31mred\x07 \u202egnp [bold]x[/] \ud800"


def session_of(url: str, key: str = "", **more: Any) -> OpenAISession:
    return OpenAISession(replace(endpoint_of(url, key), **more), Served("m"))


def answered(session: OpenAISession, **more: Any) -> tuple[str, str, str | None]:
    chunks = list(session.chat(ASKED, PARAMS, **more))
    text, thoughts = "".join(c.text for c in chunks), "".join(c.reasoning for c in chunks)
    return text, thoughts, chunks[-1].finish_reason


def fails(parts: Sequence[Part], kind: type[LocalLLMError], key: str = "") -> LocalLLMError:
    """The error of an answer."""
    with scripted([parts]) as script, pytest.raises(LocalLLMError) as caught:
        answered(session_of(script.url, key))
    assert type(caught.value) is kind, caught.value.message
    return caught.value


# ---- our own server --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tiny: Callable[[str, str], Path]) -> Iterator[str]:
    item = Item(ModelFile(tiny("llama", "F32"), "tiny"), OpenOptions(n_ctx=512), ("tiny",), 1)
    manager = Manager(Shelf([item]), FileLoader(8, 4), 1 << 30)
    with serving(manager, Access(keys=(KEY,))) as port:
        yield f"127.0.0.1:{port}"


def test_our_own_server_answers_as_a_session_does(ours: str, tiny: Any) -> None:
    endpoint = endpoint_of(ours, KEY)
    assert [model.name for model in served_models(endpoint)] == ["tiny"]
    messages: list[dict[str, Any]] = []
    with (
        OpenAISession(endpoint, served_models(endpoint)[0]) as session,
        Session.open(tiny("llama", "F32"), n_ctx=512) as alone,
    ):
        for question in ("hello there", "more"):
            messages.append({"role": "user", "content": question})
            chunks, theirs = (list(s.chat(messages, PARAMS)) for s in (session, alone))
            text = "".join(chunk.text for chunk in chunks)
            assert text == "".join(chunk.text for chunk in theirs)
            assert chunks[-1].finish_reason == theirs[-1].finish_reason == "length"
            messages.append({"role": "assistant", "content": text})
            for name in ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens"):
                assert getattr(session.stats, name) == getattr(alone.stats, name), name
        assert session.stats.cached_tokens > 0 and session.stats.decode_s > 0
        assert session.context_used > session.stats.prompt_tokens
        loaded = served_models(endpoint)[0]
        assert loaded.n_ctx == 512 and loaded.n_params > 0
        with pytest.raises(ContextFullError):
            list(session.chat([{"role": "user", "content": "a" * 9000}], PARAMS))


def test_our_own_server_refuses_a_wrong_key(ours: str) -> None:
    for key, text in (("", "asks for a key"), ("sk-wrong-wrong", "refuses the key")):
        with pytest.raises(KeyRefusedError, match=text) as caught:
            served_models(endpoint_of(ours, key))
        assert "sk-wrong" not in caught.value.message


def test_a_real_model_of_a_server_program(real_model: Callable[[str], Path]) -> None:
    path = real_model("smollm2:135m")
    params = GenerateParams(seed=7, max_tokens=24)
    with served(path, "--ctx", "1024") as running, Session.open(path, n_ctx=1024) as alone:
        endpoint = endpoint_of(running.url)
        session = OpenAISession(endpoint, served_models(endpoint)[0])
        asked = [{"role": "user", "content": "What is ice?"}]
        text = "".join(chunk.text for chunk in session.chat(asked, params))
        assert text == "".join(chunk.text for chunk in alone.chat(asked, params))
        assert session.stats.generated_tokens == alone.stats.generated_tokens
        assert session.info.n_ctx == 1024
        chunks = session.chat(asked, GenerateParams(seed=8))
        next(chunks)
        running.process.kill()
        running.process.wait()  # until then its port may still take somebody
        with pytest.raises(ServerGoneError, match="broke"):
            list(chunks)
        with pytest.raises(ServerGoneError, match="nobody listens"):
            list(session.chat(asked, params))


# ---- what is sent ----------------------------------------------------------------------------


PNG = b"\x89PNG\r\n\x1a\n..."


@pytest.mark.parametrize("data", [b"root:x:0:0", b"", b"GIF", b"RIFF1234WAVE"])
def test_only_pictures_leave_the_machine(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(data)
    with scripted([]) as script:
        session = session_of(script.url)
        for each, said in ((path, "is no picture"), (tmp_path, "is no file")):
            message = {"role": "user", "content": "hi", "images": [str(each)]}
            with pytest.raises((ArgumentError, FileError), match=said):
                list(session.chat([message], PARAMS))
    assert script.asked == []


def test_what_is_sent(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(PNG)
    params = GenerateParams(top_k=3, stop=("x",), logit_bias=((5, float("-inf")),), logprobs=2)
    with scripted([[head(), delta(content="a"), DONE]]) as script:
        session = session_of(script.url, KEY)
        message = {"role": "user", "content": "hi", "images": [str(picture)], "id": "7"}
        list(session.chat([message], params, think=True))
        list(session.chat(ASKED, GenerateParams(), think="low"))
        list(session.chat(ASKED, GenerateParams()))
        first, second, third = script.asked
        assert f"authorization: Bearer {KEY}" in script.heads[0]
    assert first["stop"] == ["x"] and first["top_k"] == 3 and first["stream"] is True
    assert first["logit_bias"] == {"5": -100.0} and "logprobs" not in first
    assert first["chat_template_kwargs"] == {"enable_thinking": True}
    assert second["reasoning_effort"] == "low"
    content = first["messages"][0]["content"]
    assert content[0] == {"type": "text", "text": "hi"}
    assert (
        content[1]["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    )
    assert "id" not in first["messages"][0]
    # A server has defaults of its own.
    assert third.keys() == {"model", "messages", "stream", "stream_options"}


def test_going_on_is_asked_for_in_words() -> None:
    cut = [*ASKED, {"role": "assistant", "content": "so"}]
    with scripted([[head(), delta(content=" on"), DONE]]) as script:
        session = session_of(script.url)
        assert next(c.text for c in session.chat(cut, PARAMS, go_on=True)) == " on"
        assert "in words to go on" in session.notes[-1]
        *before, last = script.asked[0]["messages"]
    assert before == cut and last["role"] == "user" and "Continue" in last["content"]


def test_a_server_that_knows_only_the_standard_is_asked_plainly() -> None:
    refused = [head("400 Bad Request", "application/json"), b'{"error": "top_k is unknown"}']
    good = [head(), delta(content="a"), delta("stop")]
    with scripted([refused, good]) as script:
        session = session_of(script.url)
        assert answered(session, think=False)[0] == "a"
        (note,) = session.notes
        assert note.endswith(" does not take: chat_template_kwargs, top_k")
        answered(session)
        assert "top_k" in script.asked[0] and len(script.asked) == 3
        for plain in script.asked[1:]:
            assert plain["max_tokens"] == 24 and "top_k" not in plain


# ---- what comes ------------------------------------------------------------------------------

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_and_usage(name: str) -> None:
    parts = [
        head(),
        b": keep-alive\n\nevent: message\nid: 7\n",
        delta(role="assistant", content=""),
        delta(**{name: "hm", "content": None}),
        delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        b"data:" + delta(content="c")[5:].replace(b"\n", b"\r\n"),
        delta("length"),
        event({"choices": [], "usage": USAGE, "timings": {"cache_n": 6}}),
        DONE,
    ]
    with scripted([parts]) as script:
        session = session_of(script.url)
        assert answered(session) == ("abc", "hm", "length")
        stats = session.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.computed_tokens) == (9, 6, 3)
    assert (stats.generated_tokens, stats.reasoning_tokens) == (4, 2)
    assert session.context_used == 13


@pytest.mark.parametrize(
    "parts",
    [
        [head(), delta(content="ab"), DONE],  # no reason is a good one
        [head(), delta(content="a"), delta("tool_calls", content="b")],
        [head(), b"data: " + json.dumps({"choices": [{"delta": {"content": "ab"},
         "finish_reason": "stop"}]}).replace(", ", ",\ndata: ").encode() + b"\n\n"],
        [head("200 OK", "application/json"), json.dumps({"choices": [
            {"message": {"content": "ab"}, "finish_reason": "stop"}]}, indent=1).encode()],
        [head("200 OK", "application/x-ndjson"), json.dumps(
            {"choices": [{"delta": {"content": "ab"}, "finish_reason": "stop"}]}).encode()],
        [head(), event(None), event([]), event({"choices": None}), event({"choices": [3]}),
         event({"choices": [{"delta": 7}]}), event({"usage": 5, "timings": []}),
         event({"usage": {"prompt_tokens": "x", "completion_tokens": -1}}),
         delta(content={"a": 1}), delta("stop", content="ab")],
        [head(), event({"choices": [{"index": 7, "delta": {"content": "x"}},
                                    {"index": 0, "delta": {"content": "a"}}]}),
         event({"choices": [{"index": 1, "delta": {"content": "x"}}]}), delta("stop", content="b")],
        [head(), *(bytes([b]) for b in delta("stop", content="ab"))],
        [head("200 OK", "text/event-stream", "transfer-encoding: chunked"),
         *(b"%x\r\n%s\r\n" % (len(p), p) for p in (delta(content="ab"), DONE)), b"0\r\n\r\n"],
    ],
)  # fmt: skip
def test_shapes_of_an_answer(parts: Sequence[Part]) -> None:
    with scripted([parts]) as script:
        session = session_of(script.url)
        assert answered(session) == ("ab", "", "stop")
        assert session.stats.generated_tokens >= 1


def test_halves_of_a_pair_are_joined_or_replaced() -> None:
    parts = [head(), delta(content="a\ud83d\ude00b\ud800c"), DONE]
    with scripted([parts]) as script:
        assert answered(session_of(script.url))[0] == "a\U0001f600b\ufffdc"


# ---- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        ("400 Bad", {"error": {"message": "no", "code": "context_length_exceeded"}},
         ContextFullError, "no"),
        ("400 Bad", {"error": {"message": "the request exceeds the available context size",
         "type": "exceed_context_size_error", "code": 400}}, ContextFullError, "available"),
        ("400 Bad", {"object": "error", "message": "This model's maximum context length is 5"},
         ContextFullError, "maximum"),
        ("400 Bad", {"error": "model 'x' not found"}, ArgumentError, "not found"),
        ("422 Bad", {"detail": [{"msg": "field required"}]}, ArgumentError, "field required"),
        ("404 Not Found", {"error": {"message": "no such model"}}, LocalLLMError, "no such model"),
        ("404 Not Found", b"404 page not found", LocalLLMError, "404 page not found"),
        ("401 No", {"error": {"message": f"bad key {KEY}!"}}, KeyRefusedError, r"bad key \*\*\*!"),
        ("403 No", b"", KeyRefusedError, "403"),
        ("429 Slow", {"error": {"message": "rate limit"}}, QueueFullError, "rate limit"),
        ("503 Busy", {"error": {"message": "Loading model", "code": 503}}, QueueFullError,
         "Loading"),
        ("503 Busy", {"error": {"message": "x", "code": "out_of_memory"}}, OutOfMemoryError, "x"),
        ("500 Oh", {"error": {"message": NASTY}}, ServerGoneError, r"\\x1b\[31mred\\x07 \\u202e"),
        ("502 Bad Gateway", b"<html><head><title>502 Bad\nGateway</title></head>",
         ServerGoneError, "a web page, 502 Bad Gateway"),
        ("301 Moved", b"", ServerGoneError, "is elsewhere: http://x/y"),
        ("500 Oh", b"\xff\xfe\x00" * 2000, ServerGoneError, "answered 500"),
        ("500 Oh", b"[" * 100_000, ServerGoneError, "answered 500"),
        ("418 Teapot", {"error": {"message": None, "code": None}}, ArgumentError, "answered 418"),
    ],
)  # fmt: skip
def test_refusals(status: str, body: Any, kind: type[LocalLLMError], words: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = fails(
        [head(status, "text/html", "retry-after: 7", "location: http://x/y"), raw], kind, KEY
    )
    assert re.search(words, error.message), error.message
    assert len(error.message) < 600 and error.message.isprintable()
    assert KEY not in error.message + str(error.hint)
    if isinstance(error, QueueFullError):
        assert error.retry_after_s == 7


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([head(), delta(content="a")], "broke off its answer"),
        ([head(), delta(content="a"), b'data: {"choices": [{"del'], "in the midst of an event"),
        ([head(), b"data: {nonsense\n\n"], "an event that is no JSON"),
        ([head(), b"data: [1,\n" * 3000], "an event without an end"),
        ([head(), (b'data: ["%s",\n' % (b"a" * (3 << 20))) * 3], "an event without an end"),
        ([head(), delta(content="a"), event({"error": {"message": "oom " + NASTY}})], "oom"),
        ([head(), event({"error": "llama runner process has terminated"})], "runner"),
        ([head(), event({"object": "error", "message": "engine died"})], "engine died"),
        ([head("200 OK", "text/html"), b"<html>login</html>"], "a web page"),
        ([head("200 OK", "application/json"), b"{nonsense"], "no JSON"),
        ([head("200 OK", "text/event-stream", "content-length: 999999"), delta(content="a")],
         "broke"),
        ([b"nonsense\r\n\r\n"], "broke"),
        ([b""], "broke"),
        ([head("200 OK", "text/event-stream", "transfer-encoding: chunked"), b"zz\r\nabc"],
         "broke"),
    ],
)  # fmt: skip
def test_broken_answers(parts: Sequence[Part], words: str) -> None:
    error = fails(parts, ServerGoneError)
    assert words in error.message and error.message.isprintable(), error.message


def test_what_came_before_a_break_is_there() -> None:
    with scripted([[head(), delta(content="a"), delta(content="b")]]) as script:
        chunks = session_of(script.url).chat(ASKED, PARAMS)
        assert [next(chunks).text, next(chunks).text] == ["a", "b"]
        with pytest.raises(ServerGoneError):
            next(chunks)


def test_a_context_that_is_full_in_the_stream() -> None:
    gone = event({"error": {"message": "x", "code": "context_length_exceeded"}})
    fails([head(), delta(content="a"), gone], ContextFullError)


def test_silence_ends_an_answer() -> None:
    with scripted([[head(), delta(content="a"), threading.Event()]]) as script:
        session = session_of(script.url, silence_s=0.05)
        chunks = session.chat(ASKED, PARAMS)
        assert next(chunks).text == "a"
        with pytest.raises(ServerGoneError, match="says nothing any more"):
            next(chunks)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ServerGoneError, match="nobody listens"):
        answered(session_of(f"127.0.0.1:{port}"))
    with pytest.raises(ServerGoneError, match=r"there is no host x\.invalid"):
        answered(session_of("http://x.invalid/v1"))


# ---- the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[threading.Event()], [head(), delta(content="a")]])
def test_a_cancel_hangs_up_at_once(parts: list[Part]) -> None:
    never = threading.Event()
    with scripted([[*parts, never], [head(), delta(content="b"), DONE]]) as script:
        session = session_of(script.url)
        found: list[Chunk] = []
        thread = threading.Thread(target=lambda: found.extend(session.chat(ASKED, PARAMS)))
        thread.start()
        while not script.asked or len(found) < len(parts) - 1:
            time.sleep(0.001)
        began = time.monotonic()
        session.cancel()
        thread.join(10)
        assert time.monotonic() - began < 1.0  # 0.2 s are promised
        assert found[-1].finish_reason == "cancelled"
        assert script.gone.wait(10)
        assert answered(session)[0] == "b"  # it is taken back
        session.cancel()
        assert answered(session)[2] == "cancelled"


def test_an_answer_that_is_not_read_to_its_end_hangs_up() -> None:
    with scripted([[head(), delta(content="a"), threading.Event()]]) as script:
        chunks = session_of(script.url).chat(ASKED, PARAMS)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        assert script.gone.wait(10)


# ---- addresses and keys ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("https://a.example/api/v3/", "https://a.example/api/v3"),
        ("https://a.example/v1/chat/completions", "https://a.example/v1"),
        ("http://[::1]:80/v1/models", "http://[::1]:80/v1"),
    ],
)
def test_addresses(typed: str, url: str) -> None:
    assert endpoint_of(typed).url == url


@pytest.mark.parametrize(
    "typed",
    ["", "ftp://a", "http://", "http://a:99999", "http://a b", "http://a\x1b[0m", "http://[::1",
     "http://user:pass@a"],
)  # fmt: skip
def test_what_is_no_address(typed: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        endpoint_of(typed)
    assert caught.value.message.isprintable() and "pass@" not in caught.value.message


def test_a_key_is_shown_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = Endpoint("http://a.example/v1", KEY)
    assert KEY not in repr(endpoint) and KEY not in endpoint.warning
    assert endpoint.warning.startswith("the key goes to a.example over http")
    assert not Endpoint("https://a.example/v1", KEY).warning
    assert not Endpoint("http://127.0.0.1:5/v1", KEY).warning
    assert not Endpoint("http://a.example/v1").warning
    with caplog.at_level(logging.DEBUG):
        fails([head("401 No"), KEY.encode()], KeyRefusedError, KEY)
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"data": [{"id": "a", "status": {"value": "unloaded"}}, {"id": "b"}]}, ["b", "a"]),
        ({"models": [{"name": "a"}]}, ["a"]),
        ([{"id": "a", "max_model_len": "x"}, {"id": 5}, 7, {"id": "x" * 999}], ["a"]),
    ],
)
def test_lists_of_models(body: Any, names: list[str]) -> None:
    raw = head("200 OK", "application/json") + json.dumps(body).encode()
    with scripted([], raw) as script:
        assert [model.name for model in served_models(endpoint_of(script.url))] == names


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "no JSON"),
        (b'{"data": 5}', "no list of models"),
        (b'{"data": []}', "has no models"),
        (b"[" * 99999, "no JSON"),
        (b" " * (5 << 20), "no JSON"),
    ],
    ids=["page", "number", "none", "deep", "long"],
)
def test_no_lists_of_models(body: bytes, words: str) -> None:
    raw = head("200 OK", "application/json") + body
    with scripted([], raw) as script, pytest.raises(LocalLLMError, match=words):
        served_models(endpoint_of(script.url))
