"""Headers of models that are not here, against a Hub on this machine that counts what it sends."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import headers as models
from stand_ins.hub_server import HubServer, Repo

from localllm.errors import DownloadError, FormatError
from localllm.store import remote_header
from localllm.store.identifiers import Repository
from localllm.store.inspect import GgufFile
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.ref import parse as ref
from localllm.store.remote_header import headers
from localllm.store.sources.hub import Hub, Naming

KIB = 1 << 10


@pytest.fixture
def large(tmp_path: Path) -> bytes:
    """A header of some hundred kilobytes with a megabyte of data behind it."""
    path = tmp_path / "large.gguf"
    models.write(path, models.LLAMA3_70B, models.q4_k_m)
    return path.read_bytes() + bytes(1 << 20)


def offer_of(server: HubServer, folder: Path) -> Offer:
    hub = Hub(server.url, token=None, cache=folder, offline=False)
    return hub.resolve(Repository.parse("u/m-GGUF"), Naming(ref("m")))


def test_only_the_header_is_fetched(
    tmp_path: Path, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_header, "FIRST_BYTES", 16 * KIB)
    came: list[int] = []
    with HubServer({"u/m-GGUF": Repo({"m-Q4_K_M.gguf": large})}) as server:
        with headers(offer_of(server, tmp_path / "cache"), came.append) as path:
            got = path.read_bytes()
            with GgufFile(path, header_only=True) as file:
                assert file.metadata["llama.block_count"] == 80
        assert not path.parent.exists()
    assert large.startswith(got) and len(got) == came[-1] < len(large) - (512 * KIB)
    assert len(came) > 1 and came == sorted(set(came))


def test_a_file_shorter_than_the_first_range(tmp_path: Path, large: bytes) -> None:
    with (
        HubServer({"u/m-GGUF": Repo({"m-Q4_K_M.gguf": large})}) as server,
        headers(offer_of(server, tmp_path / "cache"), lambda n: None) as path,
    ):
        assert path.stat().st_size <= len(large)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<!doctype html><html>" + bytes(4096), "HTML"),
        (b"GGUF\3\0\0\0" + b"\xff" * 8192, "model.gguf"),
    ],
)
def test_no_header(tmp_path: Path, data: bytes, words: str) -> None:
    with (
        HubServer({"u/m-GGUF": Repo({"m-Q4_K_M.gguf": data})}) as server,
        pytest.raises(FormatError, match=words),
        headers(offer_of(server, tmp_path / "cache"), lambda n: None),
    ):
        raise AssertionError("not reached")


def test_a_header_without_an_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bytes
) -> None:
    monkeypatch.setattr(remote_header, "FIRST_BYTES", 4 * KIB)
    came: list[int] = []
    with (
        HubServer({"u/m-GGUF": Repo({"m-Q4_K_M.gguf": large})}) as server,
        pytest.raises(FormatError),
        headers(offer_of(server, tmp_path / "cache"), came.append, most_bytes=16 * KIB),
    ):
        raise AssertionError("not reached")
    assert came == [4 * KIB, 16 * KIB]


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda s: None)
    with HubServer({}) as gone:
        url = gone.url
    file = RemoteFile("m.gguf", 10, None, lambda: Location(f"{url}/m.gguf"))
    with (
        pytest.raises(DownloadError, match="cannot read the header"),
        headers(Offer(ref("m"), "url", url, "", (file,)), lambda n: None),
    ):
        raise AssertionError("not reached")


def test_what_lies_here_is_not_copied(tmp_path: Path) -> None:
    file = RemoteFile("m.gguf", 10, None, lambda: Location(""))
    offer = Offer(ref("m"), "local", "", "", (file,), in_place=(tmp_path / "m.gguf",))
    with headers(offer, lambda n: None) as path:
        assert path == tmp_path / "m.gguf"
