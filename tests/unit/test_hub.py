"""The Hub as a source, against a Hub-compatible server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from stand_ins.hub_server import HubServer, Repo

from localllm.paths import Paths
from localllm.store.identifiers import Repository, Revision
from localllm.store.offer import Offer
from localllm.store.pull import pull_offer
from localllm.store.quantization import parse as quant
from localllm.store.ref import parse as ref
from localllm.store.sources import hub_client
from localllm.store.sources.hub import (
    Entry,
    Facts,
    GatedError,
    Hub,
    MissingError,
    Naming,
    UnreachableError,
)
from localllm.store.sources.index import DownloadError
from localllm.store.transfer.http import Fault
from localllm.store.transfer.progress import Progress

U_R = Repository("User", "Repo-GGUF")
BASE = Naming(ref("hf.co/user/repo-gguf"))


def content(name: str) -> bytes:
    return b"GGUF" + name.encode() * 40


def repo(*names: str, **more: object) -> Repo:
    return Repo({name: content(name) for name in names}, **more)  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[HubServer]:
    names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-f16.gguf", "imatrix.gguf", "README.md")
    with HubServer({"User/Repo-GGUF": repo(*names)}) as server:
        yield server


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(server.url, token="secret", cache=tmp_path / "hub", offline=False)


def put_in_cache(folder: Path, name: str, commit: str, files: dict[str, bytes]) -> Path:
    """As the Hub's own client leaves its files behind."""
    base = folder / f"models--{name.replace('/', '--')}"
    for file, data in files.items():
        blob = base / "blobs" / hashlib.sha256(data).hexdigest()
        link = base / "snapshots" / commit / file
        for each in (blob, link, base / "refs" / "main"):
            each.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    (base / "refs" / "main").write_text(commit)
    return base / "snapshots" / commit


def test_default_quantization(server: HubServer, hub: Hub) -> None:
    repo = server.repos["User/Repo-GGUF"]
    repo.card |= {"license": "mit"}
    repo.gguf |= {"total": 7, "architecture": "llama", "context_length": 99}
    offer = hub.resolve(U_R, BASE)
    (file,) = offer.files
    data = content("m-Q4_K_M.gguf")
    assert (file.name, file.size) == ("m-Q4_K_M.gguf", len(data))
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert str(offer.ref) == "hf.co/user/repo-gguf:q4_k_m"
    assert (offer.source, offer.repository, offer.revision) == ("hub", str(U_R), repo.commit)
    assert (offer.quantization, offer.architecture, offer.licence) == ("Q4_K_M", "llama", "mit")
    assert (offer.n_params, offer.n_ctx, offer.size) == (7, 99, len(data))
    assert offer.in_place == () and offer.notes == ()
    assert all("resolve" not in seen.path for seen in server.seen)  # nothing was fetched


def test_named_quantization_file_and_revision(server: HubServer, hub: Hub) -> None:
    assert hub.resolve(U_R, BASE, wanted=quant("Q8_0")).files[0].name == "m-Q8_0.gguf"
    commit = Revision(server.repos[str(U_R)].commit)
    offer = hub.resolve(U_R, BASE, revision=commit, file="mmproj-f16.gguf")
    assert (offer.files[0].name, offer.quantization) == ("mmproj-f16.gguf", "F16")
    with pytest.raises(MissingError, match=r"has no file 'nope\.gguf'") as missing:
        hub.resolve(U_R, BASE, file="nope.gguf")
    assert "m-Q4_K_M.gguf, m-Q8_0.gguf" in (missing.value.hint or "")
    with pytest.raises(MissingError, match="has no Q2_K, only Q4_K_M, Q8_0"):
        hub.resolve(U_R, BASE, wanted=quant("Q2_K"))
    with pytest.raises(MissingError, match="no revision v9"):
        hub.resolve(U_R, BASE, revision=Revision("v9"))


def test_the_nearest_larger_one_is_said(server: HubServer, hub: Hub) -> None:
    del server.repos[str(U_R)].files["m-Q4_K_M.gguf"]
    offer = hub.resolve(U_R, BASE)
    assert (offer.quantization, str(offer.ref)) == ("Q8_0", "hf.co/user/repo-gguf:q8_0")
    assert offer.notes == ("there is no Q4_K_M: Q8_0 is the nearest larger one",)
    assert hub.resolve(U_R, BASE, default=quant("Q8_0")).notes == ()


def test_split_set_in_a_folder(server: HubServer, hub: Hub) -> None:
    names = [f"Q6_K/m-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    server.repos["User/Big"] = repo(*names, "Q2_K/m-Q2_K-00001-of-00002.gguf")
    offer = hub.resolve(Repository("User", "Big"), Naming(ref("big:70b")))
    assert [file.name for file in offer.files] == names and str(offer.ref) == "big:70b-q6_k"
    offer = hub.resolve(Repository("User", "Big"), BASE, file=names[1])
    assert len(offer.files) == 3


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (["model.safetensors"], "holds no GGUF file", "search Odd --hub"),
        (["m-Q4_0-00001-of-00002.gguf"], "holds only a part of m-Q4_0", "another"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "several models: a-Q4_K_M.gguf, b-Q4_K_M.gguf",
         "hf.co/User/Odd:a-Q4_K_M.gguf"),
        (["a.gguf", "b.gguf"], "several models: a.gguf, b.gguf", "hf.co/User/Odd:a.gguf"),
    ],
)  # fmt: skip
def test_odd_repositories(
    server: HubServer, hub: Hub, names: list[str], message: str, hint: str
) -> None:
    server.repos["User/Odd"] = repo(*names)
    with pytest.raises(MissingError, match="User/Odd") as caught:
        hub.resolve(Repository("User", "Odd"), BASE)
    assert message in caught.value.message and hint in (caught.value.hint or "")


def test_one_model_without_a_quantization_in_its_name(server: HubServer, hub: Hub) -> None:
    server.repos["User/Odd"] = repo("phi.gguf")
    offer = hub.resolve(Repository("User", "Odd"), Naming(ref("phi:1b")))
    assert (offer.quantization, str(offer.ref)) == ("", "phi:1b")


def test_locate_sends_the_token_to_the_hub_alone(server: HubServer, hub: Hub) -> None:
    offer = hub.resolve(U_R, BASE)
    location = offer.files[0].locate()
    assert location.url.startswith(server.cdn) and dict(location.headers) == {}
    assert location.etag is None  # the content's own one is told with the content
    server.repos[str(U_R)].lfs_bytes = 1 << 20  # now all are small: no redirect, no sha256
    (file,) = hub.resolve(U_R, BASE).files
    location = file.locate()
    assert file.sha256 is None and location.url.startswith(server.url)
    assert dict(location.headers) == {"Authorization": "Bearer secret"} and location.etag
    assert {seen.authorization for seen in server.seen} == {"Bearer secret"}
    assert {seen.host for seen in server.seen} == {"127.0.0.1"}


def test_a_redirect_of_the_listing_takes_no_token_along(server: HubServer, tmp_path: Path) -> None:
    """Nor does one of a file: both lead from the Hub to another host."""
    other = server.cdn

    class Redirects(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", other + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    tokens: list[str | None] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as redirecting:
        threading.Thread(target=redirecting.serve_forever, args=(0.02,), daemon=True).start()
        hub = Hub(f"http://127.0.0.1:{redirecting.server_port}", "secret", tmp_path, offline=False)
        offer = hub.resolve(U_R, BASE)
        assert tokens == ["Bearer secret"]
        assert dict(offer.files[0].locate().headers) == {}
        assert tokens == ["Bearer secret"] * 2
        redirecting.shutdown()
    assert server.seen and {seen.authorization for seen in server.seen} == {None}


def test_without_a_token_none_is_sent(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    hub = Hub(server.url, cache=tmp_path, offline=False)
    server.repos[str(U_R)].lfs_bytes = 1 << 20
    assert dict(hub.resolve(U_R, BASE).files[0].locate().headers) == {}
    monkeypatch.setenv("HF_TOKEN", "from-env")
    assert Hub(server.url, cache=tmp_path, offline=False).resolve(U_R, BASE).files[0].locate()
    assert {seen.authorization for seen in server.seen} == {None, "Bearer from-env"}


def test_content_that_changed_under_a_pin_is_refused(server: HubServer, hub: Hub) -> None:
    commit = Revision(server.repos[str(U_R)].commit)
    entry = Entry("m-Q8_0.gguf", 5, "b" * 64)
    offer = hub.offer_pinned(U_R, commit, ref("x"), quant("Q8_0"), [entry], Facts(licence="mit"))
    assert server.seen == [] and (offer.licence, offer.revision) == ("mit", str(commit))
    with pytest.raises(DownloadError, match="is not what was listed: expected sha256 bbbb"):
        offer.files[0].locate()


def test_a_pinned_revision_that_is_gone_says_how_to_go_on(server: HubServer, hub: Hub) -> None:
    for commit, says in (("d" * 40, "has no revision d+ any more"), (None, "has lost a file")):
        revision = Revision(commit or server.repos[str(U_R)].commit)
        entry = Entry("m-Q9.gguf", 5, "b" * 64)
        offer = hub.offer_pinned(U_R, revision, ref("x"), quant("Q8_0"), [entry], Facts())
        with pytest.raises(MissingError, match=says) as caught:
            offer.files[0].locate()
        assert "pull --update" in (caught.value.hint or "")


def test_a_token_that_may_not(server: HubServer, hub: Hub) -> None:
    server.broken["/api/models"] = 403
    with pytest.raises(DownloadError, match="403") as caught:
        hub.resolve(U_R, BASE)
    assert f"terms wait at {server.url}/User/Repo-GGUF" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("token", "gated", "error", "message", "hint"),
    [
        ("other", True, GatedError, "is gated", "Your token is not allowed"),
        ("other", False, MissingError, "or it is private", "search Shut --hub"),
    ],
)
def test_shut_repositories(
    server: HubServer, hub: Hub, token: str, gated: bool, error: type[DownloadError], message: str,
    hint: str,
) -> None:  # fmt: skip
    server.repos["User/Shut"] = repo("m-Q4_0.gguf", token=token, gated=gated)
    with pytest.raises(error, match=message) as caught:
        hub.resolve(Repository("User", "Shut"), BASE)
    assert hint in (caught.value.hint or "") and "secret" not in caught.value.message


def test_gated_without_a_token(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    server.repos["User/Shut"] = repo("m-Q4_0.gguf", token="t", gated=True)
    hub = Hub(server.url, cache=tmp_path, offline=False)
    with pytest.raises(GatedError) as caught:
        hub.resolve(Repository("User", "Shut"), BASE)
    assert f"Accept its terms at {server.url}/User/Shut, then set HF_TOKEN" in str(
        caught.value.hint
    )


def test_missing_and_renamed(server: HubServer, hub: Hub) -> None:
    with pytest.raises(MissingError, match="has no repository User/None"):
        hub.resolve(Repository("User", "None"), BASE)
    server.moved["User/Old"] = str(U_R)
    offer = hub.resolve(Repository("User", "Old"), BASE)
    assert offer.repository == str(U_R)
    assert offer.notes == ("User/Old is called User/Repo-GGUF now",)


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [(401, "status 401|no repository", "token|search"), (429, "status 429", "Wait"),
     (500, "status 500", "later"), (503, "status 503", "later")],
)  # fmt: skip
def test_broken_hub(server: HubServer, hub: Hub, status: int, message: str, hint: str) -> None:
    server.broken["/api/models"] = status
    with pytest.raises(DownloadError) as caught:
        hub.resolve(U_R, BASE)
    assert any(each in caught.value.message for each in message.split("|")), caught.value.message
    assert any(each in (caught.value.hint or "") for each in hint.split("|"))


def test_a_compressed_answer_is_not_unpacked(server: HubServer, hub: Hub) -> None:
    server.bomb = gzip.compress(b" " * (32 << 20))
    for ask in (lambda: hub.resolve(U_R, BASE), lambda: hub.search("x")):
        with pytest.raises(DownloadError, match="compressed answer"):
            ask()


def test_an_endless_listing_is_not_read_to_its_end(server: HubServer, hub: Hub) -> None:
    server.repos["User/Repo-GGUF"].card["x"] = "x" * (hub_client.MAX_ANSWER_BYTES + 1)
    with pytest.raises(DownloadError, match="longer than"):
        hub.resolve(U_R, BASE)


def test_a_busy_hub_is_asked_again(server: HubServer, hub: Hub) -> None:
    server.busy = 2
    (file,) = hub.resolve(U_R, BASE).files
    server.busy = 2
    assert [match.repository for match in hub.search("repo")] == [str(U_R)]
    server.busy = 1
    with pytest.raises(Fault, match="503") as caught:  # that is what the engine tries again
        file.locate()
    assert caught.value.busy and caught.value.after == 0
    assert file.locate().url.startswith(server.cdn)


def test_a_hub_that_vanishes_in_mid_download_is_asked_again(tmp_path: Path) -> None:
    with HubServer({}) as gone:
        url = gone.url
    hub = Hub(url, token="t", cache=tmp_path, offline=False)
    with pytest.raises(Fault, match="cannot be reached") as caught:
        hub.locate(U_R, "d" * 40, Entry("m.gguf", 9, None))
    assert caught.value.unreachable


def test_hub_that_is_none(server: HubServer, hub: Hub) -> None:
    server.broken["/api/models"] = 200  # answers, but not with a listing
    with pytest.raises(DownloadError) as caught:
        hub.resolve(U_R, BASE)
    assert "wrong" in caught.value.message or "understood" in caught.value.message


def test_nobody_listens(tmp_path: Path) -> None:
    with HubServer({}) as gone:
        url = gone.url
    with pytest.raises(UnreachableError, match="cannot be reached") as caught:
        Hub(url, token="t", cache=tmp_path, offline=False).resolve(U_R, BASE)
    assert "HF_ENDPOINT" in (caught.value.hint or "")


def test_hostile_names_in_a_listing_are_left_out(server: HubServer, hub: Hub) -> None:
    bad = ["../evil-Q4_K_M.gguf", "a/../../b-Q4_K_M.gguf", "x\x1b-Q4_K_M.gguf", "a\\b-Q4_K_M.gguf",
           "/abs-Q4_K_M.gguf", "x" * 2000 + ".gguf"]  # fmt: skip
    server.repos["User/Evil"] = repo(*bad, "ok-Q4_K_M.gguf")
    offer = hub.resolve(Repository("User", "Evil"), BASE)
    assert [file.name for file in offer.files] == ["ok-Q4_K_M.gguf"]


def test_a_file_of_the_shared_cache_is_used(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    data = {"m-Q4_K_M.gguf": content("m-Q4_K_M.gguf")}
    snapshot = put_in_cache(tmp_path / "hub", str(U_R), "d" * 40, data)  # of another commit
    offer = hub.resolve(U_R, BASE)
    assert offer.in_place == (snapshot / "m-Q4_K_M.gguf",)
    assert offer.in_place[0].read_bytes() == data["m-Q4_K_M.gguf"]
    assert hub.resolve(U_R, BASE, wanted=quant("Q8_0")).in_place == ()
    (snapshot / "m-Q4_K_M.gguf").resolve().write_bytes(b"shorter")
    assert hub.resolve(U_R, BASE).in_place == ()


def test_a_link_out_of_the_cache_proves_nothing(
    server: HubServer, hub: Hub, tmp_path: Path
) -> None:
    data = content("m-Q4_K_M.gguf")
    commit = server.repos[str(U_R)].commit
    snapshot = tmp_path / "hub" / "models--User--Repo-GGUF" / "snapshots" / commit
    outside = tmp_path / hashlib.sha256(data).hexdigest()
    outside.write_bytes(data)
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q4_K_M.gguf").symlink_to(outside)
    assert hub.resolve(U_R, BASE).in_place == ()


def test_split_set_of_the_cache_needs_all_its_files(
    server: HubServer, hub: Hub, tmp_path: Path
) -> None:
    names = [f"m-Q6_K-0000{i}-of-00002.gguf" for i in (1, 2)]
    server.repos["User/Big"] = repo(*names)
    big, commit = Repository("User", "Big"), server.repos["User/Big"].commit
    put_in_cache(tmp_path / "hub", "User/Big", commit, {names[0]: content(names[0])})
    assert hub.resolve(big, BASE).in_place == ()
    snapshot = put_in_cache(tmp_path / "hub", "User/Big", commit, {names[1]: content(names[1])})
    assert hub.resolve(big, BASE).in_place == tuple(snapshot / name for name in names)


def offline_offer(server: HubServer, tmp_path: Path, **more: object) -> Offer:
    return Hub(server.url, token="t", cache=tmp_path / "hub", offline=True).resolve(
        U_R, BASE, **more  # type: ignore[arg-type]
    )  # fmt: skip


def test_offline(server: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="HF_HUB_OFFLINE is set"):
        offline_offer(server, tmp_path)
    data = {"m-Q8_0.gguf": content("m-Q8_0.gguf")}
    snapshot = put_in_cache(tmp_path / "hub", str(U_R), "d" * 40, data)
    offer = offline_offer(server, tmp_path)
    assert offer.in_place == (snapshot / "m-Q8_0.gguf",) and offer.revision == "d" * 40
    assert offer.files[0].sha256 == hashlib.sha256(data["m-Q8_0.gguf"]).hexdigest()
    assert offline_offer(server, tmp_path, revision=Revision("d" * 40)).in_place == offer.in_place
    with pytest.raises(UnreachableError, match="HF_HUB_OFFLINE"):
        offer.files[0].locate()
    with pytest.raises(UnreachableError):
        offline_offer(server, tmp_path, revision=Revision("e" * 40))
    with pytest.raises(UnreachableError, match="search"):
        Hub(server.url, token="t", cache=tmp_path, offline=True).search("x")
    assert server.seen == []


def test_a_damaged_cache_is_no_cache(server: HubServer, tmp_path: Path) -> None:
    base = tmp_path / "hub" / "models--User--Repo-GGUF" / "refs"
    base.mkdir(parents=True)
    for text in (b"../../../etc", b"\xff", b"", b"d" * 40):
        (base / "main").write_bytes(text)
        with pytest.raises(UnreachableError):
            offline_offer(server, tmp_path)


def test_unreachable_falls_back_to_the_cache(tmp_path: Path) -> None:
    with HubServer({}) as gone:
        url = gone.url
    data = {"m-Q8_0.gguf": content("m-Q8_0.gguf")}
    put_in_cache(tmp_path, str(U_R), "d" * 40, data)
    offer = Hub(url, token="t", cache=tmp_path, offline=False).resolve(U_R, BASE)
    assert offer.in_place and offer.quantization == "Q8_0"


def test_search(server: HubServer, hub: Hub) -> None:
    server.repos["Other/Repo-2"] = repo("x.gguf")
    found = hub.search("repo")
    assert [match.repository for match in found] == ["User/Repo-GGUF", "Other/Repo-2"]
    assert (found[0].downloads, found[0].likes, found[0].gated) == (50, 5, False)
    assert found[0].modified.startswith("2026-01-01T00:00:00")
    assert [match.repository for match in hub.search("repo", limit=1)] == ["User/Repo-GGUF"]
    assert hub.search("nothing-like-it") == []
    server.broken["/api/models"] = 200  # an answer that is no list of models
    with pytest.raises(DownloadError, match="cannot be understood"):
        hub.search("repo")


def test_search_gives_up_soon(tmp_path: Path) -> None:
    with HubServer({}) as gone:
        url = gone.url
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        Hub(url, token="t", cache=tmp_path, offline=False).search("x")
    assert time.monotonic() - began < 10  # it takes milliseconds


@pytest.mark.parametrize("before", ["", "import huggingface_hub.constants;"])
def test_the_client_reports_nothing(before: str) -> None:
    """Also where another library loaded it first."""
    code = (
        f"{before}from localllm.store.sources import hub;"
        "print(hub.library().constants.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_a_damaged_file_of_the_shared_cache_is_fetched_instead(
    server: HubServer,
    hub: Hub,
    tmp_path: Path,
    tiny: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    data = tiny("llama", "Q4_0").read_bytes()
    server.repos["User/Real"] = Repo({"m-Q4_0.gguf": data})
    snapshot = put_in_cache(tmp_path / "hub", "User/Real", "d" * 40, {"m-Q4_0.gguf": data})
    blob = (snapshot / "m-Q4_0.gguf").resolve()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # as long as it was
    offer = hub.resolve(Repository("User", "Real"), Naming(ref("hf.co/user/real")))
    assert offer.in_place
    places = Paths(tmp_path / "models", tmp_path / "cache", tmp_path / "config")
    reported: list[Progress] = []
    model = pull_offer(offer, offer.ref, places, reported.append)
    assert (reported[0].state, reported[0].size) == ("checking", len(data))  # theirs, first
    assert not model.elsewhere and model.path.read_bytes() == data
    assert blob.read_bytes() != data  # theirs is not ours to mend
