"""A session of a running server gives what one that is opened here gives, to the last bit."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins.api_server import serving
from stand_ins.conditions import wait, wait_for_pages
from stand_ins.server_process import served

from localllm import paths, remote_session
from localllm.errors import ArgumentError, ContextFullError, UnsupportedError
from localllm.params import GenerateParams
from localllm.remote_session import RemoteSession, Sought
from localllm.server import announced, client
from localllm.server.announced import Announced, announcing
from localllm.server.client import RefusedError, ServerGoneError
from localllm.server.file_loader import FileLoader
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile, OpenOptions
from localllm.server.security import Access
from localllm.server.shelf import Item, Shelf
from localllm.session import Chunk, Session

PARAMS = GenerateParams(seed=5, temperature=0.9, max_tokens=24, ignore_eos=True, logprobs=2)
KEY = "a-key-of-the-server"
N_CTX = 512


@pytest.fixture(scope="module")
def path(tiny: Callable[[str, str], Path]) -> Path:
    return tiny("llama", "F32")


@pytest.fixture(scope="module")
def folder(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    item = Item(ModelFile(path, "tiny"), OpenOptions(n_ctx=N_CTX), ("tiny",), 1)
    manager = Manager(Shelf([item]), FileLoader(8, 4), 1 << 30)
    folder = tmp_path_factory.mktemp("servers")
    with serving(manager, Access(keys=(KEY,))) as port:
        own = Announced(f"http://127.0.0.1:{port}", os.getpid(), key=KEY)
        with announcing(folder, own):
            yield folder


@pytest.fixture
def remote(folder: Path, path: Path) -> Iterator[RemoteSession]:
    session, why_not = remote_session.find(folder, Sought(path, "tiny", "", "f16"))
    assert session is not None and not why_not
    with session:
        yield session


@pytest.fixture
def local(path: Path) -> Iterator[Session]:
    with Session.open(path, n_ctx=N_CTX, label="tiny") as session:
        yield session


def joined(chunks: Iterator[Chunk]) -> tuple[Any, ...]:
    every = list(chunks)
    ids = tuple(token for chunk in every for token in chunk.token_ids)
    logprobs = [each for chunk in every for each in chunk.logprobs]
    text, thoughts = "".join(c.text for c in every), "".join(c.reasoning for c in every)
    return text, thoughts, ids, logprobs, every[-1].finish_reason


def test_a_conversation_is_the_same(remote: RemoteSession, local: Session) -> None:
    talks: list[list[Any]] = [[], []]
    for session, talk in zip((remote, local), talks, strict=True):
        messages: list[dict[str, Any]] = []
        for question in ("hello <|im_end|> there", "and é?", "more"):
            messages.append({"role": "user", "content": question})
            answer = joined(session.chat(messages, PARAMS, think=True))
            messages.append({"role": "assistant", "content": answer[0]})
            assert session.answer is not None
            record = dataclasses.replace(session.answer, created="")
            talk.append((answer, session.notes, record, record.id, session.context_used))
        stats = session.stats
        talk.append((stats.prompt_tokens, stats.generated_tokens, stats.reasoning_tokens))
        assert stats.cached_tokens > 0 and stats.prompt_s > 0
        talk.append(joined(session.chat(messages, PARAMS, go_on=True)))
        session.forget()
        talk.append(joined(session.chat(messages[:1], PARAMS)))
        talk.append(joined(session.complete("Once", PARAMS)))
        bias = dataclasses.replace(PARAMS, logit_bias=((5, float("-inf")), (6, 2.0)))
        talk.append(joined(session.complete("Once", bias)))
    for one, other in zip(*talks, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert mine == theirs
    assert talks[0][0][1] == ("this model cannot be told to reason",)
    shared = {"engine", "architecture", "isa", "n_ctx", "n_params", "description", "template"}
    for name in shared | {"can_think", "recommended", "weight_bytes"}:
        assert getattr(remote.info, name) == getattr(local.info, name), name


def test_errors_are_the_same(remote: RemoteSession, local: Session) -> None:
    for ask, kind in (
        (lambda s: s.complete("a" * 9000, PARAMS), ContextFullError),
        (lambda s: s.chat([{"role": "user", "content": 5}], PARAMS), ArgumentError),
    ):
        texts = []
        for session in (remote, local):
            with pytest.raises(kind) as caught:
                joined(ask(session))
            texts.append(caught.value.message)
        if kind is ContextFullError:  # a server says it in OpenAI's words
            assert all("9000" in text and "512" in text for text in texts)
        else:
            assert texts[0].partition(". ")[0] == texts[1]
        assert remote.answer is None
    picture = {"role": "user", "content": "x", "images": ["a.png"]}
    with pytest.raises(UnsupportedError):
        joined(remote.chat([picture], PARAMS))
    assert joined(remote.complete("a", PARAMS))[4] == "length"  # and goes on


def test_nothing_stays_if_nothing_may(remote: RemoteSession) -> None:
    texts = iter("abcd")

    def cached(may_store: bool, text: str) -> int:
        remote.may_store = may_store
        joined(remote.chat([{"role": "user", "content": text * 150}], PARAMS))
        joined(remote.complete(text * 150, PARAMS))
        raw = remote.stats.cached_tokens
        joined(remote.chat([{"role": "user", "content": text * 150}], PARAMS))
        return remote.stats.cached_tokens + raw

    first = cached(False, next(texts))  # the head of the template may be there already
    assert [cached(store, next(texts)) > first + 100 for store in (False, True)] == [False, True]


def test_cancel(remote: RemoteSession) -> None:
    endless = dataclasses.replace(PARAMS, max_tokens=None, logprobs=None)
    for when in ("before", "amid"):
        if when == "before":
            remote.cancel()
        got = []
        for chunk in remote.complete("a", endless):
            got.append(chunk)
            if when == "amid" and len(got) == 1:
                threading.Thread(target=remote.cancel).start()
        assert got[-1].finish_reason == "cancelled"
        assert (remote.answer is not None) == (when == "amid")
    assert joined(remote.complete("a", PARAMS))[4] == "length"


def test_where_there_is_no_such_server(folder: Path, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes())
    assert remote_session.find(folder, Sought(other, "o", "", "f16")) == (None, "")
    assert remote_session.find(folder, Sought(path, "tiny", "{{ x }}", "f16")) == (None, "")
    assert remote_session.find(folder, Sought(path, "tiny", "", "q8_0")) == (None, "")
    assert remote_session.find(tmp_path, Sought(path, "tiny", "", "f16")) == (None, "")
    real = json.loads(next(folder.glob("*.json")).read_text())
    (tmp_path / "1.json").write_text(json.dumps({**real, "version": "0.0.9"}))
    session, why_not = remote_session.find(tmp_path, Sought(path, "tiny", "", "f16"))
    assert session is None and "0.0.9" in why_not
    (tmp_path / "1.json").write_text(json.dumps({**real, "key": "not-the-right-key"}))
    session, why_not = remote_session.find(tmp_path, Sought(path, "tiny", "", "f16"))
    assert session is None and "key" in why_not


@pytest.mark.parametrize("named", ["\0", "a\0b", "~", "/proc/self/mem", "x" * 4000])
def test_what_is_no_path_of_a_model_is_not_found(named: str, folder: Path) -> None:
    (server,) = announced.found(folder)
    with pytest.raises(RefusedError) as caught:
        client.ask(server, "/localllm/session", {"path": named})
    assert caught.value.status == 404


@pytest.mark.parametrize("said", [b"", b"{}\n", b'{"prompt_ids": [1], "notes": []}\n{"chu', b"[1"])
def test_a_server_that_breaks_off(said: bytes, remote: RemoteSession) -> None:
    """It says so: half an answer is never taken for a whole one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        remote._server = dataclasses.replace(remote._server, url=url)
        with pytest.raises(ServerGoneError):
            joined(remote.complete("a", PARAMS))
        assert remote.answer is None


def test_a_text_goes_on_after_a_kill(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of programs of this user is new at each start; what is kept for them is not."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    sought = Sought(path, "tiny", "", "f16")
    text = "".join(f"the ice of the sea no. {i}, " for i in range(9))
    servers = paths.current().servers
    keys, cached, n_prompt = set(), [], 0
    for more in ("first", " and then"):
        text += more
        with served(path, "--api-key", "of-others") as server:
            wait(lambda: announced.found(servers) != [])
            keys.add(announced.found(servers)[0].key)
            session, why_not = remote_session.find(servers, sought)
            assert session is not None and not why_not
            with session:
                joined(session.complete(text, PARAMS))
                cached.append(session.stats.cached_tokens - n_prompt)
                n_prompt = session.stats.prompt_tokens
            if len(keys) == 1:
                wait_for_pages(tmp_path, n_prompt + PARAMS.max_tokens)
            server.process.kill()
            server.process.wait()
    assert len(keys) == 2 and "" not in keys
    assert cached == [0, 0]
