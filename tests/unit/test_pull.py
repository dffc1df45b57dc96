"""From an offer to a model of the store: what is replaced, what is kept, what is not fetched."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import ROOT
from stand_ins.fault_server import FaultServer
from stand_ins.transferring import FAST, remote

from localllm.errors import FileError, FormatError
from localllm.paths import Paths
from localllm.store.index import Model, Store
from localllm.store.offer import Offer
from localllm.store.pull import pull_offer
from localllm.store.record import Record
from localllm.store.ref import Ref
from localllm.store.sources import url as url_source
from localllm.store.transfer import partials
from localllm.store.wanted import UrlName, parse

REF = Ref("m", "1b")
GOOD = small_models.gguf()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "models", tmp_path / "cache", tmp_path / "config")


def an_offer(server: FaultServer, *contents: bytes) -> Offer:
    files = []
    for i, content in enumerate(contents):
        name = f"/{hashlib.sha256(content).hexdigest()}-{i}.gguf"
        files.append(remote(server.add(name, content), content))
    return Offer(REF, "oci", "h/m", "1", tuple(files))


def pull(offer: Offer, places: Paths) -> Model:
    return pull_offer(offer, offer.ref, places, lambda progress: None, settings=FAST)


@pytest.mark.parametrize("n_files", [1, 2])
def test_a_damaged_update_leaves_the_good_model(
    server: FaultServer, places: Paths, n_files: int
) -> None:
    pull(an_offer(server, GOOD), places)
    before = Store(places.models).find(REF)
    bad = [GOOD[:200], GOOD[:210]][:n_files]
    with pytest.raises(FormatError, match="damaged there") as caught:
        pull(an_offer(server, *bad), places)
    assert "check-" not in caught.value.message and ".partial" not in caught.value.message
    assert Store(places.models).find(REF) == before
    assert before is not None and before.path.read_bytes() == GOOD
    assert partials.listing(places.downloads) == []


@pytest.mark.parametrize("head", [b"GGUF\xff\xff\xff\xff", b"GGUF\x01\0\0\0"])
def test_a_version_that_nothing_reads_is_refused(
    server: FaultServer, places: Paths, head: bytes
) -> None:
    with pytest.raises(FormatError, match=r"damaged there: .*version"):
        pull(an_offer(server, head + b"\xff" * 5000), places)
    assert not Store(places.models).list()
    unknown_type = bytearray(GOOD)  # a newer one than this build knows: others may run it
    at = GOOD.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    unknown_type[at] = 200
    assert pull(an_offer(server, bytes(unknown_type)), places).record is not None


def test_a_file_of_the_users_own_stays(server: FaultServer, places: Paths) -> None:
    store = Store(places.models)
    mine = bytearray(GOOD)
    mine[-1] ^= 1  # of the same size
    store.folder.mkdir(parents=True)
    store.path(REF).write_bytes(mine)
    unsized = replace(an_offer(server, GOOD).files[0], size=None, sha256=None)
    offer = an_offer(server, GOOD)
    for record in (None, Record(len(mine), hashlib.sha256(mine).hexdigest(), "own", "now")):
        if record:
            store.record(REF, record)
        for each in (offer, replace(offer, files=(unsized,))):
            with pytest.raises(FileError, match="another model has the name"):
                pull(each, places)
    assert store.path(REF).read_bytes() == mine
    store.path(REF).write_bytes(GOOD)  # what is offered, of whatever record
    server.sent.clear()
    assert pull(offer, places).record == store.find(REF).record  # type: ignore[union-attr]
    assert server.total_sent == 0


def test_a_second_pull_keeps_what_was_told_once(server: FaultServer, places: Paths) -> None:
    told = replace(an_offer(server, GOOD), licence="mit", architecture="llama")
    pull(told, places)
    record = pull(replace(told, licence="", architecture=""), places).record
    assert record is not None and (record.licence, record.architecture) == ("mit", "llama")


def a_url_offer(server: FaultServer, content: bytes) -> Offer:
    name = parse(server.add("/m-Q4_0.gguf", content))
    assert isinstance(name, UrlName)
    return url_source.resolve(name)


def test_an_address_is_not_fetched_again_while_its_etag_stays(
    server: FaultServer, places: Paths
) -> None:
    content = small_models.gguf(n_floats=80_000)
    model = pull(a_url_offer(server, content), places)
    server.sent.clear()
    assert pull(a_url_offer(server, content), places).path == model.path
    assert server.total_sent < len(content) / 10
    model.path.write_bytes(content[:-1] + b"\1")  # the disk changed it
    pull(a_url_offer(server, content), places)
    assert model.path.read_bytes() == content
    pull(a_url_offer(server, GOOD), places)
    assert model.path.read_bytes() == GOOD


DYING_PULL = """
    import os, signal, sys
    from pathlib import Path
    from localllm.paths import Paths
    from localllm.store.pull import pull_offer
    from localllm.store.sources import url
    from localllm.store.wanted import parse
    base, left = Path(sys.argv[2]), int(sys.argv[3])
    offer = url.resolve(parse(sys.argv[1]))
    models = str(base / "models")
    def audit(event, arguments):
        global left
        if event in ("open", "os.rename", "os.remove") and left:
            if any(str(each).startswith(str(base)) for each in arguments[:2]):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(audit)
    pull_offer(offer, offer.ref, Paths(base / "models", base / "cache", base / "config"),
               lambda progress: None)
"""


@pytest.mark.skipif(os.name == "nt", reason="kill -9")
def test_killed_at_any_step_nothing_nameless_is_visible(
    server: FaultServer, tmp_path: Path, full: bool
) -> None:
    """kill -9 before files of the store are opened, renamed or deleted: who finds the file finds
    its record, and what came whole is not fetched again."""
    content = small_models.gguf(n_floats=300_000)
    url = server.add("/m-Q4_0.gguf", content)
    command = [sys.executable, "-c", textwrap.dedent(DYING_PULL), url]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    seen = set()
    step = 13 if not full else 1
    for n in range(step, 200, 1 if full else 2):
        base = tmp_path / str(n)
        server.sent.clear()
        died = subprocess.run([*command, str(base), str(n)], env=env, check=False)
        assert died.returncode in (0, -signal.SIGKILL)
        models = Store(base / "models" / "models").list()
        assert all(model.record and model.problem is None for model in models)
        places = Paths(base / "models", base / "cache", base / "config")
        journal = [each.n_bytes for each in partials.listing(places.downloads)]
        here = bool(models) or journal == [len(content)]
        server.sent.clear()
        done = pull(a_url_offer(server, content), places)
        assert done.path.read_bytes() == content and done.record is not None
        assert partials.listing(places.downloads) == []
        assert not here or server.total_sent < len(content) / 10, n
        seen.add((bool(models), here))
        if died.returncode == 0:
            break
    assert seen >= {(True, True), (False, True)}, seen


def test_what_a_source_does_not_say_the_file_says(server: FaultServer, places: Paths) -> None:
    record = pull(an_offer(server, GOOD), places).record
    assert record is not None and (record.quantization, record.architecture) == ("F32", "llama")
    told = replace(an_offer(server, GOOD), quantization="Q4_K_M")
    record = pull(told, places).record
    assert record is not None and record.quantization == "Q4_K_M"
