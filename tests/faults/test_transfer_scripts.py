"""Random scripts of faults: the file ends identical, or the call fails clearly and a later one ends
it. Nothing that is not right is ever visible."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stand_ins.fault_server import KINDS, Fault, FaultServer, gguf_noise
from stand_ins.transferring import Place, faster, remote

from localllm.errors import DownloadError, FormatError

N_BYTES = 300_000
N_SCRIPTS = 200


def value_of(kind: str, chance: random.Random) -> float:
    if kind == "status":
        return chance.choice([403, 404, 408, 416, 429, 429, 500, 502, 503, 503])
    if kind in ("cut", "corrupt"):
        return chance.random()
    return {
        "stall": 5,
        "drip": 40,
        "long": 9,
        "wrong_range": 64,
        "gzip": 8,
        "headers": 150_000,
    }.get(kind, 0)


def script(server: FaultServer, chance: random.Random, hashed: bool) -> list[Fault]:
    """Up to 14 faults among right answers; the slow kinds are rarer."""
    kinds = [
        kind for kind in KINDS if kind not in ("stall", "drip") and (hashed or kind != "corrupt")
    ]
    faults = []
    for _ in range(chance.randrange(1, 15)):
        kind = chance.choice(["stall", "drip"]) if chance.random() < 0.04 else chance.choice(kinds)
        text = ""
        if kind == "status":
            text = chance.choice(["", "0", "1", "junk"])
        elif kind == "redirect":
            text = server.url("/a.gguf", chance.choice(["localhost", "127.0.0.1"]))
        faults += [Fault("none")] * chance.choice([0, 0, 0, 1, 3])
        n = chance.choice([1] * 9 + [30]) if kind not in ("stall", "drip") else 1  # or it stays
        if kind == "other" and not hashed:
            n = 1  # without a hash, a server that keeps sending another file has that file
        faults += [Fault(kind, value_of(kind, chance), text)] * n
    return faults


def test_random_fault_scripts(tmp_path: Path, full: bool) -> None:
    """Several at once: most of their time is waiting."""
    content = gguf_noise(N_BYTES)
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda seed: outcome(tmp_path, content, seed), range(N_SCRIPTS)))
    for seed in range(N_SCRIPTS, 2 * N_SCRIPTS if full else 0):  # one at a time
        outcome(tmp_path, content, seed)
    assert set(outcomes) == {"whole", "refused"}, outcomes


def outcome(folder: Path, content: bytes, seed: int) -> str:
    """What the first of up to two attempts comes to; the last one always brings the file."""
    chance = random.Random(seed)
    hashed = chance.random() < 0.7
    place = Place(folder / str(seed), faster(stall_s=0.4))
    final = place.models / "model.gguf"
    seen_early = []
    with FaultServer() as server:
        url = server.add("/a.gguf", content, ranges=chance.random() < 0.85)
        file = remote(url, content, hashed=hashed, sized=chance.random() < 0.7)
        server.on_request = lambda n: seen_early.append(n) if final.exists() else None
        server.play(script(server, chance, hashed))
        said = "whole"
        try:
            got = place.fetch(file)
        except (DownloadError, FormatError) as e:
            said = "refused"
            assert len(e.message) > 20
            assert not final.exists(), seed
            server.play([])
            got = place.fetch(file)
    assert got.path == final and final.read_bytes() == content, seed
    assert [path.name for path in place.models.iterdir()] == ["model.gguf"], seed
    assert not seen_early, seed
    return said


@pytest.mark.parametrize("seed", range(3))
def test_a_set_under_faults(tmp_path: Path, seed: int) -> None:
    """Split files: either all of them are there, or none."""
    from localllm.store.transfer.fetch import Wanted, fetch_all

    chance = random.Random(seed)
    place = Place(tmp_path)
    with FaultServer() as server:
        wanted = []
        for i in (1, 2):
            content = gguf_noise(100_000, seed=i)
            url = server.add(f"/{i}.gguf", content)
            wanted.append((Wanted(remote(url, content), place.models / f"{i}.gguf"), content))
        server.play(script(server, chance, hashed=False))
        files = [each for each, _ in wanted]
        try:
            fetch_all(files, place.downloads, place.reported.append, settings=place.settings)
        except (DownloadError, FormatError):
            assert list(place.models.iterdir()) == []
            server.play([])
            fetch_all(files, place.downloads, place.reported.append, settings=place.settings)
        for each, content in wanted:
            assert each.final.read_bytes() == content
