"""The real library and real pulls: a store in a temporary folder, files from a local server."""

from __future__ import annotations

import hashlib
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.fault_server import Fault, FaultServer
from stand_ins.transferring import remote
from tui.fakes import FakeOpener

from localllm.errors import ArgumentError, LocalLLMError
from localllm.paths import Paths
from localllm.store import download, sources
from localllm.store.offer import Offer
from localllm.store.ref import Ref
from localllm.tui import library as library_module
from localllm.tui.library import AVAILABLE, PARTIAL, READY, LocalLibrary, ServedLibrary
from localllm.tui.model_texts import details_text
from localllm.tui.outlook import FITS, TOO_LARGE, UNKNOWN
from localllm.tui.pulls import CANCELLED, DONE, FAILED, Pull, Pulls, StoreBring

GOOD = small_models.gguf()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """An empty store; no other program's; a machine that need not be measured."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    monkeypatch.setattr(library_module, "read_speed", lambda places: 20.0)
    return Paths(tmp_path, tmp_path / "cache", tmp_path / "config")


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


def test_rows_outlooks_and_details(places: Paths, tiny: Any) -> None:
    places.models.mkdir()
    (places.models / "mine@1k.gguf").write_bytes(tiny("llama", "Q4_0").read_bytes())
    (places.models / "junk.gguf").write_bytes(b"GGUF" + b"\xff" * 50)
    library = LocalLibrary(places)
    rows, notes = library.rows()
    assert notes == []
    assert [(row.name, row.state) for row in rows[:2]] == [("junk", READY), ("mine:1k", READY)]
    by_name = {row.name: row for row in rows}
    mine = by_name["mine:1k"]
    found = library.outlook(mine)
    assert found.fit == FITS
    assert found.tokens_per_s
    assert found.tokens_per_s > 1
    assert {kv for _, kv, _, _ in found.plans} == {"f16", "q8_0"}
    facts = dict(library.details(mine))
    assert facts["architecture"] == "llama"
    assert "template" in facts
    assert "licence" in facts
    assert facts["file"].endswith("mine@1k.gguf")
    assert "mine:1k" in details_text(mine, found, list(facts.items()))

    junk = library.outlook(by_name["junk"])
    assert junk.fit == UNKNOWN
    assert "cannot be judged" in junk.why
    assert library.details(by_name["junk"])[0][0] == "problem"

    # The catalogue's: of the package index and of the Hub, some too large for any test machine.
    packaged = by_name["smollm2:135m"]
    assert packaged.state == AVAILABLE
    assert library.outlook(packaged).fit == FITS
    large = next(row for row in rows if row.name.endswith(":120b"))
    assert library.outlook(large).why.startswith("It takes about")
    assert library.outlook(large).fit in (FITS, TOO_LARGE)
    assert library.outlook(large).quantization
    assert dict(library.details(large))["licence"]
    assert library.recommended() <= set(by_name)
    assert not any("embed" in row.name for row in rows)


def test_the_machine_is_measured_once(places: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Paths] = []

    def measure(where: Paths) -> float:
        measured.append(where)
        return 20.0

    monkeypatch.setattr(library_module, "read_speed", measure)
    library = LocalLibrary(places)
    for _ in range(2):
        rows, _ = library.rows()
        library.outlook(rows[0])
    assert measured == [places]


def test_measured_speed_counts(places: Paths, tiny: Any) -> None:
    from localllm.session import machine_facts
    from localllm.store import speeds
    from localllm.store.speeds import Measured

    places.models.mkdir()
    (places.models / "mine@1k.gguf").write_bytes(tiny("llama", "Q4_0").read_bytes())
    machine = machine_facts()
    speeds.note(places.cache, Measured(
        "mine:1k", "", "native", machine.isa, machine.n_threads, 1e6, 0.0, 10.0, 321.0, "bench"
    ))  # fmt: skip
    library = LocalLibrary(places)
    rows, _ = library.rows()
    found = library.outlook(next(row for row in rows if row.name == "mine:1k"))
    assert (found.tokens_per_s, found.basis) == (321.0, "measured")


def test_delete(places: Paths) -> None:
    places.models.mkdir()
    path = places.models / "mine@1k.gguf"
    path.write_bytes(GOOD)
    library = LocalLibrary(places)
    library.rows()
    assert library.deletion("mine:1k") == ("mine:1k", len(GOOD))
    assert path.exists()
    assert library.delete("mine:1k") == []
    assert not path.exists()
    with pytest.raises(LocalLLMError, match="not on this machine"):
        library.deletion("mine:1k")


def test_a_damaged_catalogue_of_the_users_is_a_note(places: Paths) -> None:
    (places.config / "catalog").mkdir(parents=True)
    (places.config / "catalog" / "x.toml").write_text("[[")
    rows, notes = LocalLibrary(places).rows()
    assert rows
    assert "x.toml" in notes[0]


def test_a_servers_models_can_only_be_chosen() -> None:
    library = ServedLibrary(FakeOpener(), "http://h:1")
    rows, notes = library.rows()
    assert [(row.name, row.is_here, row.can_pull, row.can_delete) for row in rows] == [
        ("fake:135m", True, False, False)
    ]
    assert notes == []
    assert library.outlook(rows[0]).fit == UNKNOWN
    assert dict(library.details(rows[0]))["source"] == "http://h:1"
    with pytest.raises(LocalLLMError):
        library.deletion("fake:135m")


def offered(server: FaultServer, monkeypatch: pytest.MonkeyPatch, *contents: bytes) -> None:
    files = []
    for n, content in enumerate(contents, 1):
        name = f"/{hashlib.sha256(content).hexdigest()[:8]}-{n}.gguf"
        files.append(remote(server.add(name, content), content))
    offer = Offer(Ref("teeny", "1k"), "oci", "h/m", "1", tuple(files))
    monkeypatch.setattr(sources, "offer", lambda wish, known, lock: offer)


def over(pulls: Pulls) -> Pull:
    end = time.monotonic() + 20
    while not pulls.all() or not pulls.all()[0].is_over:
        assert time.monotonic() < end
        time.sleep(0.005)
    return pulls.all()[0]


def test_a_pull_into_the_store(
    places: Paths, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(server, monkeypatch, GOOD)
    seen: list[Pull] = []
    pulls = Pulls(StoreBring(places))
    pulls.watch(seen.append)
    assert pulls.start("me/teeny")
    last = over(pulls)
    assert (last.state, last.model, last.sentence) == (DONE, "teeny:1k", "teeny:1k is here")
    assert seen[0].stage == "asking what there is"
    assert (places.models / "teeny@1k.gguf").read_bytes() == GOOD
    assert pulls.line() == ""
    pulls.dismiss("me/teeny")
    assert pulls.all() == []


def test_a_pull_is_stopped_and_goes_on(
    places: Paths, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = small_models.gguf(n_floats=400_000)
    offered(server, monkeypatch, content)
    server.bytes_per_s = 400_000
    pulls, begun = Pulls(StoreBring(places)), threading.Event()
    pulls.watch(lambda pull: begun.set() if pull.n_bytes > 100_000 else None)
    pulls.start("me/teeny")
    assert begun.wait(20)
    assert pulls.line().startswith("pulling me/teeny")
    pulls.cancel("me/teeny")
    stopped = over(pulls)
    assert stopped.state == CANCELLED
    assert "pull it again" in stopped.sentence
    rows, _ = LocalLibrary(places).rows()
    half = next(row for row in rows if row.name == "teeny:1k")
    assert half.state == PARTIAL
    assert half.downloaded > 0
    server.bytes_per_s = 0
    sent = sum(server.sent.values())
    pulls.start("me/teeny")
    assert over(pulls).state == DONE
    assert sum(server.sent.values()) - sent < len(content)  # only what was missing
    assert (places.models / "teeny@1k.gguf").read_bytes() == content


def test_a_failed_pull_says_why(
    places: Paths, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(server, monkeypatch, GOOD)
    server.play([Fault("status", 404)] * 20)
    pulls = Pulls(StoreBring(places))
    pulls.start("me/teeny")
    failed = over(pulls)
    assert failed.state == FAILED
    assert "404" in failed.error
    pulls.start("no such name!")
    end = time.monotonic() + 20
    while not pulls.all()[-1].is_over:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert pulls.all()[-1].state == FAILED
    assert pulls.all()[-1].error


def test_a_pull_from_the_package_index(places: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(entry: Any, where: Paths, report: Any) -> Any:
        assert where == places
        for progress in (
            download.Progress("check", 5, 10),
            download.Progress("download", 10, 100, "waiting for a mirror"),
            download.Progress("download", 30, 100),
            download.Progress("unpack", 50, 100),
        ):
            report(progress)
        return types.SimpleNamespace(ref=entry.ref)

    monkeypatch.setattr(download, "pull", fetched)
    seen: list[Pull] = []
    assert StoreBring(places)(Pull("smollm2"), seen.append) == "smollm2:135m"
    stages = [pull.stage for pull in seen[1:]]
    assert stages == ["checking", "waiting for a mirror", "downloading", "unpacking"]
    assert [pull.share for pull in seen[1:]] == [0.5, 0.1, 0.3, 0.5]
    assert seen[3].bytes_per_s > 0
    assert seen[4].bytes_per_s == 0


def test_a_fault_of_ours_ends_the_bar() -> None:
    def broken(pull: Pull, tell: Any) -> str:
        raise ZeroDivisionError("ours")

    pulls = Pulls(broken)
    pulls.start("a")
    assert "ZeroDivisionError: ours" in over(pulls).sentence


def test_close_ends_all() -> None:
    def endless(pull: Pull, tell: Any) -> str:
        while True:
            tell(pull)
            time.sleep(0.001)

    pulls = Pulls(endless)
    for name in ("a", "b"):
        assert pulls.start(name)
    assert not pulls.start("a")
    assert pulls.line() == "pulling a and 1 more"
    pulls.close()
    assert [pull.state for pull in pulls.all()] == [CANCELLED, CANCELLED]


def test_names_are_checked(places: Paths) -> None:
    def tell(pull: Pull) -> None: ...

    with pytest.raises(ArgumentError, match="is on this machine already"):
        StoreBring(places)(Pull("./x.gguf"), tell)
