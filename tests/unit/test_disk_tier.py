"""Pages on the disk: what was written is found again, and nothing else is."""

from __future__ import annotations

import logging
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localllm.engine import disk_tier, kv_files
from localllm.engine.disk_tier import DiskTier, Fetch
from localllm.engine.kv_files import Shape
from localllm.engine.kv_pages import Page, page_name
from localllm.store import kv_cache

SHAPE = Shape(b"k" * 32, (3000, 1000))
FILE_BYTES = 8192  # of a page, as the cap counts it
ROOT = page_name(b"", [1])


def chain(n: int, seed: int = 0) -> list[Page]:
    rng, parent, pages = random.Random(seed), ROOT, []
    for depth in range(n):
        tokens = tuple(rng.randrange(1000) for _ in range(32))
        pages.append(Page(page_name(parent, tokens), parent, tokens, depth))
        parent = pages[-1].name
    return pages


def contents(page: Page) -> list[bytes]:
    rng = random.Random(page.name)
    return [rng.randbytes(n) for n in SHAPE.block_bytes]


class Place:
    """A folder, and tiers over it."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "model" / "key"
        self.tiers: list[DiskTier] = []

    def open(self, cap: int = 1 << 30, shape: Shape = SHAPE) -> DiskTier:
        tier = DiskTier(self.root, self.folder, shape, cap)
        self.tiers.append(tier)
        assert tier.ready.wait(10)
        return tier

    def filled(self, n: int = 4) -> list[Page]:
        tier, pages = self.open(), chain(n)
        for page in pages:
            tier.keep(page, contents(page))
        tier.close()
        assert len(self.names()) == n
        return pages

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def path(self, page: Page) -> Path:
        return self.folder / page.name.hex()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "cache" / "kv")
    yield made
    for tier in made.tiers:
        tier.close()


def fetched(tier: DiskTier, pages: list[Page]) -> Fetch:
    done = threading.Event()
    fetch = tier.fetch([(page, (0, 1)) for page in pages], lambda fetch: done.set())
    assert done.wait(10) and fetch.is_done
    return fetch


def test_what_was_written_is_found_after_a_restart(place: Place) -> None:
    pages = place.filled()
    tier = place.open()
    assert [tier.get(page.name) for page in pages] == pages
    assert tier.children(ROOT, pages[0].tokens[0]) == [pages[0]]
    assert all(tier.holds(page.name, group) for page in pages for group in (0, 1))
    assert not tier.holds(pages[0].name, 2) and not tier.holds(b"x", 0)
    fetch = fetched(tier, pages)
    assert fetch.contents == {p.name: dict(enumerate(contents(p))) for p in pages}
    assert fetch.n_bytes == 4 * 4000 and tier.n_damaged == 0


def test_a_group_that_is_not_there(place: Place) -> None:
    tier, (page,) = place.open(), chain(1)
    tier.keep(page, [contents(page)[0], b""])
    assert tier.flush(10)
    for each in (tier, place.open()):
        assert each.holds(page.name, 0) and not each.holds(page.name, 1)


def test_only_the_user_can_read(place: Place) -> None:
    place.root.mkdir(parents=True, mode=0o755)
    old = os.umask(0)
    try:
        (page, *_) = place.filled()
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.path(page).stat().st_mode) == 0o600
    for folder in (place.root, place.folder.parent, place.folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= 1 << at % 8
    path.write_bytes(raw)


def other_version(path: Path) -> None:
    """Right in all but its version."""
    raw = bytearray(path.read_bytes())
    raw[8] = 99
    raw[SHAPE.header_bytes - 32 : SHAPE.header_bytes] = kv_files.checksum(
        bytes(raw[: SHAPE.header_bytes - 32])
    )
    path.write_bytes(raw)


def linked(path: Path) -> None:
    path.rename(path.parents[3] / "elsewhere")
    path.symlink_to(path.parents[3] / "elsewhere")


def second_name(path: Path) -> None:
    os.link(path, path.parents[3] / "elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut header": lambda path: os.truncate(path, 100),
    "cut contents": lambda path: os.truncate(path, 4000),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "header bit": lambda path: flip(path, 300),
    "other version": other_version,
    "wrong mode": lambda path: path.chmod(0o644),
    "link": linked,
    "second name": second_name,
    "pipe": pipe,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_not_right_is_removed(
    kind: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    pages = place.filled()
    DAMAGE[kind](place.path(pages[1]))
    DAMAGE["empty"](place.path(pages[3]))
    with caplog.at_level(logging.WARNING, "localllm.engine"):
        tier = place.open()
    # What follows it is never looked for again, and goes, too.
    assert place.names() == [pages[0].name.hex()]
    assert tier.get(pages[0].name) and not any(tier.get(page.name) for page in pages[1:])
    assert tier.n_damaged == 2 and len(caplog.records) == 1
    if kind in ("link", "second name"):
        assert (place.root.parent / "elsewhere").stat().st_size > 4000
    for page in pages[1:]:
        tier.keep(page, contents(page))
    assert tier.flush(10) and len(fetched(tier, pages).contents) == 4


def test_any_bit_that_flips_is_found(place: Place, full: bool) -> None:
    pages = place.filled(2)
    path = place.path(pages[1])
    good = path.read_bytes()
    for at in range(0, len(good), 1 if full else 61):
        path.write_bytes(good)
        path.chmod(0o600)
        tier = place.open()
        assert len(tier) == 2
        flip(path, at)  # while it is known
        assert list(fetched(tier, pages).contents) == [pages[0].name], at
        assert not path.exists() and tier.get(pages[1].name) is None
        tier.close()


def test_a_page_in_the_place_of_another(place: Place) -> None:
    pages = place.filled()
    shutil.copy(place.path(pages[2]), place.path(pages[1]))
    tier = place.open()
    assert tier.get(pages[1].name) is None and not place.path(pages[1]).exists()


def test_what_belongs_to_another_key_is_foreign(place: Place) -> None:
    place.filled()
    tier = place.open(shape=Shape(b"o" * 32, SHAPE.block_bytes))
    assert len(tier) == 0 and place.names() == [] and tier.n_damaged == 4


def test_files_of_nobody(place: Place) -> None:
    place.filled(1)
    gone = place.folder / ".abc.1.4194300.tmp"
    mine = place.folder / f".abc.1.{os.getpid()}.tmp"
    for path in (gone, mine, place.folder / "notes.txt"):
        path.write_bytes(b"x")
    place.open()
    assert place.names() == [mine.name, chain(1)[0].name.hex()]


def test_pages_of_others_that_go_are_not_there(place: Place) -> None:
    """Two processes with one folder."""
    one, other, pages = place.open(), place.open(), chain(3)
    for page in pages:
        one.keep(page, contents(page))
        other.keep(page, contents(page))
    assert one.flush(10) and other.flush(10)
    assert len(fetched(one, pages).contents) == len(fetched(other, pages).contents) == 3
    place.path(pages[1]).unlink()
    assert list(fetched(one, pages).contents) == [pages[0].name]
    assert one.n_damaged == 0 and one.get(pages[1].name) is None
    kv_cache.forget(place.folder.parent)  # `localllm rm`, while a server runs
    one.keep(pages[1], contents(pages[1]))
    assert one.flush(10) and place.names() == [pages[1].name.hex()] and not one.stopped


def test_the_cap_holds_and_ends_go_first(place: Place) -> None:
    tier = place.open(cap=20 * FILE_BYTES)
    older, newer = chain(8, 1), chain(8, 2)
    for pages in (older, newer):
        for page in pages:
            tier.keep(page, contents(page))
        tier.touch([page.name for page in pages])
    more = chain(8, 3)
    for page in more:
        tier.keep(page, contents(page))
        assert tier.flush(10) and tier.used_bytes <= 20 * FILE_BYTES
    assert all(tier.get(page.name) for page in newer + more)
    n_left = sum(tier.get(page.name) is not None for page in older)
    assert 0 < n_left < 8 and [tier.get(page.name) for page in older[:n_left]] == older[:n_left]
    assert len(place.names()) == 16 + n_left


def test_the_beginning_stays_as_long_as_what_follows(place: Place) -> None:
    """Pages that an answer adds are newer than its prompt's."""
    tier, pages, other = place.open(cap=12 * FILE_BYTES), chain(8, 1), chain(8, 2)
    for page in pages[:4] + other[:4] + pages[4:]:
        tier.keep(page, contents(page))
    assert tier.flush(10)
    times = {page: i for i, page in enumerate(pages[:4] + other[:4] + pages[4:])}
    for page, i in times.items():
        os.utime(place.path(page), (i, i))
    for page in chain(2, 3):
        tier.keep(page, contents(page))
    assert tier.flush(10)
    assert all(tier.get(page.name) for page in pages)
    assert sum(tier.get(page.name) is not None for page in other) < 4


def test_other_models_count(place: Place) -> None:
    place.filled(8)
    place.folder.parent.rename(place.root / "other")
    tier = place.open(cap=10 * FILE_BYTES)
    for page in chain(6, 1):
        tier.keep(page, contents(page))
    assert tier.flush(10) and len(tier) == 6
    assert tier.used_bytes == (6 + len(list((place.root / "other" / "key").iterdir()))) * FILE_BYTES
    assert tier.used_bytes <= 10 * FILE_BYTES


def test_a_cap_below_a_page_is_said_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    pages, small = chain(2, 9), place.open(cap=FILE_BYTES - 1)
    with caplog.at_level(logging.WARNING, "localllm.engine"):
        for page in pages:
            small.keep(page, contents(page))
        assert small.flush(10)
    assert not any(small.get(page.name) for page in pages) and small.n_skipped == 2
    assert [r.message for r in caplog.records] == [
        f"a page of the KV cache takes 8.2 kB, all may take 8.2 kB: less is kept in {place.folder}"
    ]


def test_a_full_disk_is_tried_again_later(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pages, write, left = chain(6), os.write, [9000]

    def full(descriptor: int, part: bytes) -> int:
        if left[0] <= 0:
            raise OSError(28, os.strerror(28))
        n = write(descriptor, part[: left[0]])
        left[0] -= n
        return n

    tier = place.open()
    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.WARNING, "localllm.engine"):
        for page in pages:
            tier.keep(page, contents(page))
        assert tier.flush(10)
    assert not tier.stopped and [r.message[:16] for r in caplog.records] == ["the disk is full"]
    # The end of what was used longest ago went for others. No temporary file is left.
    assert place.names() == [pages[0].name.hex()] and tier.n_skipped == 4
    assert [tier.get(p.name) is not None for p in pages] == [True] + [False] * 5
    assert len(fetched(tier, pages[:1]).contents) == 1
    assert all(tier.pending(page.name, 0) is None for page in pages)
    left[0] = 1 << 20
    tier.keep(pages[1], contents(pages[1]))
    assert tier.flush(10) and len(place.names()) == 1  # it is not tried at every page
    monkeypatch.setattr(disk_tier, "RETRY_S", 0.0)
    tier._full_until_s = 0.0
    for page in pages[1:]:
        tier.keep(page, contents(page))
    assert tier.flush(10) and len(place.names()) == len(tier) == 6


def test_what_lies_in_the_way_of_one_page_stops_no_other(place: Place) -> None:
    tier, pages = place.open(), chain(3)
    assert tier.flush(10)
    (place.folder / pages[1].name.hex()).mkdir()
    (place.folder / pages[1].name.hex() / "mine").write_text("not of the cache")
    for page in pages:
        tier.keep(page, contents(page))
    assert tier.flush(10) and not tier.stopped and tier.n_skipped == 1
    assert [tier.get(p.name) is not None for p in pages] == [True, False, True]
    assert (place.folder / pages[1].name.hex() / "mine").exists()


@pytest.mark.parametrize("which", ["root", "folder"])
def test_a_folder_that_is_a_link_is_not_entered(which: str, place: Place, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    where = place.root if which == "root" else place.folder
    where.parent.mkdir(parents=True)
    where.symlink_to(away)
    tier = place.open()
    assert "link" in tier.stopped
    tier.keep(chain(1)[0], contents(chain(1)[0]))
    assert tier.flush(10) and list(away.iterdir()) == []


def test_what_waits_for_the_disk_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "PENDING_BYTES", 9000)
    tier, pages, go = place.open(), chain(4), threading.Event()
    tier._writer.put(lambda: go.wait(10) and None)
    for page in pages:
        tier.keep(page, contents(page))
    assert tier.n_skipped == 2 and tier.pending(pages[1].name, 0) == contents(pages[1])[0]
    assert tier.pending(pages[2].name, 0) is None and tier.get(pages[2].name) is None
    go.set()
    assert tier.flush(10) and tier.pending(pages[1].name, 0) is None
    tier.keep(pages[2], contents(pages[2]))
    assert tier.flush(10) and len(fetched(tier, pages).contents) == 3


def test_a_longer_end_takes_the_place_of_a_shorter(place: Place) -> None:
    tier, (whole,) = place.open(), chain(1)
    parts = []
    for n in (10, 20, 32):
        tokens = whole.tokens[:n]
        parts.append(Page(page_name(ROOT, tokens), ROOT, tokens, 0))
        tier.keep(parts[-1], contents(parts[-1]))
    assert tier.flush(10) and place.names() == [whole.name.hex()]
    assert [tier.get(part.name) for part in parts] == [None, None, whole]
