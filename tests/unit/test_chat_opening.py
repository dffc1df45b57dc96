"""The openers of chat: models of this machine, of a running server, and of an address."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins.api_server import serving
from stand_ins.openai_server import head, scripted

from localllm import paths
from localllm.cli.chat_opening import LocalOpener, UrlOpener
from localllm.cli.loading_options import Opening
from localllm.errors import ArgumentError, CancelledError, FileError, LocalLLMError
from localllm.openai_session import OpenAISession, endpoint_of
from localllm.params import GenerateParams
from localllm.pooled_session import PooledSession
from localllm.remote_session import RemoteSession
from localllm.server.announced import Announced, announcing
from localllm.server.file_loader import FileLoader
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile, OpenOptions, TierOptions
from localllm.server.security import Access
from localllm.server.shelf import Item, Shelf
from localllm.store import modelfile
from localllm.store.index import Store
from localllm.store.record import Record
from localllm.store.ref import parse
from localllm.store.settings import Settings
from localllm.tui.opening import AnySession, LoadOptions, Opener

PARAMS = GenerateParams(seed=5, max_tokens=40, ignore_eos=True)
SMALL = LoadOptions(n_ctx=512)
ASKED = [{"role": "user", "content": "hello there, all of you"}]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def path(tiny: Callable[[str, str], Path]) -> str:
    return str(tiny("llama", "Q4_0"))


def local(asked: str | None = None, **more: Any) -> LocalOpener:
    return LocalOpener(asked, Opening(**{"n_threads": 1, "engine": "native", **more}))


@pytest.fixture
def opener() -> Iterator[LocalOpener]:
    made = local()
    yield made
    made.close()


def opened(opener: Opener, name: str, options: LoadOptions = SMALL, **more: Any) -> AnySession:
    told = {"progress": lambda share: None, "notice": lambda line: None, "cancelled": lambda: False}
    return opener.open(name, options, **{**told, **more})


def installed(name: str, file: str, settings: Settings, used: float = 0) -> None:
    """Gives a file a name in the store."""
    store, ref = Store(paths.current().models), parse(name)
    path = store.path(ref)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Path(file).read_bytes())
    record = Record(path.stat().st_size, "a" * 64, "a test", "", settings=settings)
    store.record(ref, record)
    if used:
        store.touch(ref)
        os.utime(store.used_path(ref), (used, used))


def test_names_and_the_default(opener: LocalOpener, path: str) -> None:
    assert opener.default() is None and list(opener.names()) == []
    for name, used in (("old:1b", 1000.0), ("new:1b", 2000.0), ("never:1b", 0.0)):
        installed(name, path, Settings(), used)
    assert opener.default() == "new:1b"
    assert list(opener.names()) == ["new:1b", "old:1b", "never:1b"]
    assert local("x:1b").default() == "x:1b"


def test_what_comes_with_a_model_is_described(opener: LocalOpener, path: str) -> None:
    settings = Settings(
        system="Be brief.", messages=(("user", "a"), ("assistant", "b")), parameters={"top_k": 3}
    )
    installed("mine:1b", path, settings)
    found = opener.describe("mine:1b")
    assert (found.name, found.label, found.system) == ("mine:1b", "mine:1b", "Be brief.")
    assert found.messages[1] == {"role": "assistant", "content": "b"}
    assert found.sampling == {"top_k": 3} and found.file_bytes == Path(path).stat().st_size
    assert opener.describe(path).file_bytes == Path(path).stat().st_size
    with pytest.raises(FileError, match="there is no file"):
        opener.describe("/nowhere/x.gguf")
    with pytest.raises(LocalLLMError, match="there is no model called"):
        opener.describe("nonsense:1b")


def test_texts_that_a_model_has_along(opener: LocalOpener, path: str) -> None:
    settings = Settings(template="{{ messages }}", licence="MIT\nAnd so on.", system="Be brief.")
    installed("mine:1b", path, settings)
    assert opener.text_of("mine:1b", "license") == "MIT\nAnd so on."
    assert opener.text_of("mine:1b", "template") == "{{ messages }}"
    text = opener.text_of("mine:1b", "modelfile")
    assert modelfile.parse(text).settings == settings
    assert "<|im_start|>" in local(template="chatml").text_of("mine:1b", "template")
    assert local(template="{{ given }}").text_of("mine:1b", "template") == "{{ given }}"
    with pytest.raises(ArgumentError, match="names no licence"):
        opener.text_of(path, "license")


def test_sessions_of_one_model_share_it_until_the_last_one_ends(
    opener: LocalOpener, path: str
) -> None:
    shares: list[float] = []
    one = opened(opener, path, progress=shares.append)
    assert shares and shares[-1] == 1.0
    n_shares = len(shares)
    other = opened(opener, path, progress=shares.append)
    assert len(shares) == n_shares
    assert isinstance(one, PooledSession) and isinstance(other, PooledSession)
    assert one._service is other._service
    assert one.info.n_ctx == 512
    bigger = opened(opener, path, LoadOptions(n_ctx=256, kv_type="q8_0"))
    assert isinstance(bigger, PooledSession) and bigger._service is not one._service
    one.close()
    assert "".join(chunk.text for chunk in other.chat(ASKED, PARAMS))
    other.close()
    other.close()
    assert len(opener._pools) == 1  # the bigger one
    again = opened(opener, path)
    assert isinstance(again, PooledSession) and again._service is not other._service
    list(again.chat(ASKED, PARAMS))
    assert again.stats.cached_tokens > 0  # from the disk


@pytest.mark.skipif(os.name == "nt", reason="nobody can cut a file that is mapped")
def test_a_file_that_was_cut_is_opened_again(tmp_path: Path, path: str) -> None:
    copy = tmp_path / "model.gguf"
    whole = Path(path).read_bytes()
    copy.write_bytes(whole)
    opener = local(mmap=True)
    one, other = (opened(opener, str(copy)) for _ in range(2))
    before = "".join(chunk.text for chunk in one.chat(ASKED, PARAMS))
    os.truncate(copy, copy.stat().st_size // 2)
    assert not one.is_lost
    for session in (one, other):
        for _ in range(2):
            with pytest.raises(FileError, match=r"model\.gguf"):
                list(session.chat([{"role": "user", "content": "something new"}], PARAMS))
        assert session.is_lost
    with pytest.raises(LocalLLMError):
        opened(opener, str(copy))
    copy.write_bytes(whole)
    third, fourth = (opened(opener, str(copy)) for _ in range(2))
    assert isinstance(one, PooledSession) and isinstance(third, PooledSession)
    assert isinstance(fourth, PooledSession) and fourth._service is third._service
    one.close()
    other.close()  # the last one of the pool that is lost
    assert one._service is not third._service and not one._service._thread.is_alive()
    assert not third.is_lost
    assert "".join(chunk.text for chunk in third.chat(ASKED, PARAMS)) == before
    third.close()
    assert "".join(chunk.text for chunk in fourth.chat(ASKED, PARAMS)) == before
    opener.close()
    fourth.close()
    assert not fourth._service._thread.is_alive() and not opener._pools


def test_a_load_can_be_stopped(opener: LocalOpener, path: str) -> None:
    with pytest.raises(CancelledError):
        opened(opener, path, cancelled=lambda: True)
    assert not opener._pools
    opener.close()
    with pytest.raises(CancelledError):
        opened(opener, path)


def test_a_conversation_is_forgotten(opener: LocalOpener, path: str) -> None:
    session = opened(opener, path)
    session.conversation = "7"
    list(session.chat(ASKED, PARAMS))
    assert opener.forget_conversation("8") == 0
    assert opener.forget_conversation("7") > 0
    assert opener.forget_conversation("7") == 0


def test_a_damaged_model_is_an_error(opener: LocalOpener, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"nonsense")
    with pytest.raises(LocalLLMError) as caught:
        opened(opener, str(bad))
    assert caught.value.hint


def test_a_running_server_is_asked(path: str, home: Path) -> None:
    options = OpenOptions(n_ctx=512, tiers=TierOptions(disk_bytes=1 << 28))
    item = Item(ModelFile(Path(path), "tiny"), options, ("tiny",), 1)
    manager = Manager(Shelf([item]), FileLoader(8, 4), 1 << 30)
    lines: list[str] = []
    opener = LocalOpener(None, Opening(server=True))
    with serving(manager, Access(keys=("a-key-of-it",))) as port:
        own = Announced(f"http://127.0.0.1:{port}", os.getpid(), key="a-key-of-it")
        with announcing(paths.current().servers, own):
            session = opened(opener, path, LoadOptions(), notice=lines.append)
            assert isinstance(session, RemoteSession)
            assert lines == [f"{path} is answered by the server at {own.url}"]
            session.conversation = "7"
            list(session.chat(ASKED, PARAMS))
            here = opened(opener, path)  # another context is asked for
            assert isinstance(here, PooledSession)
            # What the server writes is there soon.
            while not list(paths.current().kv.rglob("transcripts/*")):
                pass
    assert opener.forget_conversation("7") > 0
    opener.close()


# ---- addresses -------------------------------------------------------------------------------


def listing(*names: str) -> bytes:
    document = {"data": [{"id": name, "meta": {"n_ctx": 77}} for name in names]}
    return head("200 OK", "application/json") + json.dumps(document).encode()


def test_models_of_an_address() -> None:
    with scripted([], listing("a", "b")) as script:
        opener = UrlOpener(None, endpoint_of(script.url))
        assert not opener.is_local
        assert opener.default() == "a" and list(opener.names()) == ["a", "b"]
        assert opener.describe("b").label == "b"
        session = opened(opener, "b", LoadOptions())
        assert isinstance(session, OpenAISession) and session.info.n_ctx == 77
        with pytest.raises(ArgumentError, match="has no model c") as caught:
            opened(opener, "c", LoadOptions())
        assert caught.value.hint == "It has: a, b"
        with pytest.raises(CancelledError):
            opened(opener, "a", LoadOptions(), cancelled=lambda: True)
        assert opener.forget_conversation("7") == 0
        opener.close()
        with pytest.raises(ArgumentError, match="does not say what the license"):
            opener.text_of("a", "license")


def test_a_server_without_a_list_is_asked_by_name() -> None:
    with scripted([], head("404 Not Found", "text/plain")) as script:
        opener = UrlOpener("x", endpoint_of(script.url))
        assert opener.default() == "x"
        assert isinstance(opened(opener, "x", LoadOptions()), OpenAISession)
        with pytest.raises(LocalLLMError):
            opened(UrlOpener(None, endpoint_of(script.url)), "x", LoadOptions())


def test_a_key_that_goes_in_the_open_is_said() -> None:
    with scripted([], listing("a")) as script:
        endpoint = endpoint_of(script.url.replace("127.0.0.1", "localhost"), "sk-secret-key")
        lines: list[str] = []
        opened(UrlOpener(None, endpoint), "a", LoadOptions(), notice=lines.append)
        assert lines == []
    assert dataclasses.replace(endpoint, url="http://a.example/v1").warning
