"""From names to offers: repositories in order, pins, and names in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins.hub_server import HubServer, Repo

from localllm.store import sources
from localllm.store.catalog import Catalog, Request, load
from localllm.store.lockfile import Lockfile
from localllm.store.offer import Offer
from localllm.store.quantization import parse as quant
from localllm.store.ref import parse as ref
from localllm.store.resolve import exact_refs, local_refs, resolve_hub, resolve_request
from localllm.store.sources.hub import Hub, MissingError, UnreachableError
from localllm.store.wanted import HubName, parse

CATALOG = """
name = "m"
description = "d"
architecture = "llama"
licence = "CC0"
context = 6
[[size]]
size = "7b"
default = true
parameters = 5
[size.variants]
instruct = ["first/m-GGUF", "second/m-GGUF"]
"""


def repo(*names: str) -> Repo:
    return Repo({name: b"GGUF" + name.encode() * 40 for name in names})


@pytest.fixture
def server() -> Iterator[HubServer]:
    second = repo("m-Q4_K_M.gguf", "m-Q8_0.gguf")
    with HubServer({"first/m-GGUF": repo("m-Q5_K_M.gguf"), "second/m-GGUF": second}) as server:
        yield server


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(server.url, token="t", cache=tmp_path / "hub", offline=False)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "m.toml").write_text(CATALOG)
    return load(tmp_path / "catalog")


@pytest.fixture
def lock(tmp_path: Path) -> Lockfile:
    return Lockfile(tmp_path / "models.lock.json")


def request(catalog: Catalog, name: str) -> Request:
    found = catalog.request(ref(name))
    assert found is not None
    return found


def pin(lock: Lockfile, asked: str, offer: Offer) -> None:
    hashes = {file.name: (file.size or 0, file.sha256 or "a" * 64) for file in offer.files}
    lock.pin(ref(asked), offer, hashes)


def test_the_first_repository_that_can(server: HubServer, hub: Hub, catalog: Catalog) -> None:
    offer = resolve_request(request(catalog, "m"), hub)
    assert (offer.repository, str(offer.ref)) == ("first/m-GGUF", "m:7b-q5_k_m")
    assert (offer.licence, offer.n_ctx, offer.n_params) == ("CC0", 6, 5)
    offer = resolve_request(request(catalog, "m:7b-instruct-q8_0"), hub)
    assert (offer.repository, str(offer.ref)) == ("second/m-GGUF", "m:7b-q8_0")
    server.repos["first/m-GGUF"].card["license"] = "tag"
    assert resolve_request(request(catalog, "m"), hub).licence == "CC0"
    server.repos["first/m-GGUF"].token = "other"
    assert resolve_request(request(catalog, "m"), hub).repository == "second/m-GGUF"


def test_none_can(server: HubServer, hub: Hub, catalog: Catalog) -> None:
    with pytest.raises(MissingError, match="no repository delivers m:7b-q2_k") as caught:
        resolve_request(request(catalog, "m:7b-q2_k"), hub)
    assert "first/m-GGUF has no Q2_K, only Q5_K_M; second/m-GGUF has no" in caught.value.message
    assert "Name one of these" in (caught.value.hint or "")


def test_a_dead_network_is_said_once(catalog: Catalog, tmp_path: Path) -> None:
    hub = Hub("http://127.0.0.1:9", token="t", cache=tmp_path, offline=True)
    with pytest.raises(UnreachableError, match="first/m-GGUF cannot be looked up"):
        resolve_request(request(catalog, "m"), hub)


def test_the_pin_wins(server: HubServer, hub: Hub, catalog: Catalog, lock: Lockfile) -> None:
    first = resolve_request(request(catalog, "m"), hub, lock)
    pin(lock, "m:7b", first)
    server.repos["first/m-GGUF"].files["m-Q4_K_M.gguf"] = b"GGUF" + b"new" * 99
    seen = len(server.seen)
    again = resolve_request(request(catalog, "m"), hub, lock)
    assert len(server.seen) == seen  # nobody was asked
    assert (again.ref, again.revision, again.quantization) == (
        first.ref, first.revision, "Q5_K_M",
    )  # fmt: skip
    assert [(f.name, f.size, f.sha256) for f in again.files] == [
        (f.name, f.size, f.sha256) for f in first.files
    ]
    assert again.licence == "CC0"
    assert resolve_request(request(catalog, "m:7b-q5_k_m"), hub, lock).ref == first.ref
    assert str(resolve_request(request(catalog, "m"), hub, None).ref) == "m:7b-q4_k_m"


def test_all_spellings_are_pinned_alike(
    server: HubServer, catalog: Catalog, lock: Lockfile, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "localllm.store.sources.hub.Hub",
        lambda: Hub(server.url, token="t", cache=tmp_path, offline=False),
    )
    for text in ("m", "m:7b", "M:7B-chat", "m:instruct"):
        wanted = parse(text)
        assert sources.asked(wanted, catalog) == ref("m:7b")
        offer = sources.offer(wanted, catalog, lock)
        lock.pin(ref("m:7b"), offer, {file.name: (5, "a" * 64) for file in offer.files})
    assert len(server.seen) == 1  # the first one alone had to ask
    assert sources.asked(parse("m:q8_0"), catalog) == ref("m:7b-q8_0")
    assert sources.asked(parse("second/m-GGUF"), catalog) == ref("hf.co/second/m-gguf")
    assert sources.asked(parse("./m"), catalog) is None


def hub_name(text: str) -> HubName:
    wanted = parse(text)
    assert isinstance(wanted, HubName)
    return wanted


def test_repositories_by_name(server: HubServer, hub: Hub, lock: Lockfile) -> None:
    offer = resolve_hub(hub_name("second/m-GGUF"), hub, lock)
    assert str(offer.ref) == "hf.co/second/m-gguf:q4_k_m"
    assert str(resolve_hub(hub_name("second/m-GGUF:Q8_0"), hub).ref).endswith(":q8_0")
    by_file = resolve_hub(hub_name("hf.co/second/m-GGUF:m-Q8_0.gguf"), hub)
    assert str(by_file.ref) == "hf.co/second/m-gguf:q8_0"
    with_default = resolve_hub(hub_name("second/m-GGUF"), hub, default=quant("Q8_0"))
    assert with_default.quantization == "Q8_0"


def test_pins_of_repositories(server: HubServer, hub: Hub, lock: Lockfile) -> None:
    offer = resolve_hub(hub_name("second/m-GGUF"), hub, lock)
    pin(lock, "hf.co/second/m-gguf", offer)
    server.repos["second/m-GGUF"].files["m-Q4_K_M.gguf"] = b"GGUF" + b"new" * 99
    assert resolve_hub(hub_name("second/m-GGUF"), hub, lock).revision == offer.revision
    assert resolve_hub(hub_name("second/m-GGUF@main"), hub, lock).revision != offer.revision


def test_names_in_the_store(catalog: Catalog, lock: Lockfile, hub: Hub) -> None:
    def names(text: str) -> list[str]:
        return [str(each) for each in local_refs(ref(text), catalog, lock)]

    assert names("m") == ["m", "m:7b", "m:7b-q4_k_m"]
    assert names("m:7b-instruct-q8_0") == ["m:7b-instruct-q8_0", "m:7b-q8_0"]
    assert names("hf.co/u/r") == ["hf.co/u/r", "hf.co/u/r:q4_k_m"]
    assert names("other:x") == ["other:x"]
    assert [str(each) for each in local_refs(ref("smollm2"), load(), lock)] == [
        "smollm2", "smollm2:135m",
    ]  # fmt: skip
    packaged = local_refs(ref("smollm2:135m-instruct-q4_1"), load(), lock)
    assert [str(each) for each in packaged] == ["smollm2:135m-instruct-q4_1", "smollm2:135m"]
    exact = exact_refs(ref("m:7b-instruct-q8_0"), catalog, lock)
    assert [str(each) for each in exact] == ["m:7b-instruct-q8_0", "m:7b-q8_0"]
    for name in ("m", "m:7b", "m:7b-instruct", "m:q8_0", "hf.co/u/r"):
        assert exact_refs(ref(name), catalog, lock) == (ref(name),)
    pin(lock, "m:7b", resolve_request(request(catalog, "m"), hub))
    assert [str(e) for e in exact_refs(ref("m:7b"), catalog, lock)] == ["m:7b", "m:7b-q5_k_m"]
    assert names("m") == ["m", "m:7b", "m:7b-q5_k_m", "m:7b-q4_k_m"]


def test_a_damaged_lock_file_keeps_no_model_from_its_use(catalog: Catalog, tmp_path: Path) -> None:
    damaged = tmp_path / "models.lock.json"
    damaged.write_text("{")
    assert local_refs(ref("mine:x"), catalog, Lockfile(damaged)) == (ref("mine:x"),)
