"""Where pages go that the pool has no room for, and where they come back from: memory of the
process, and the disk. What the prefix cache sees of both.

Every page is written to the disk once it is computed, the last one of a sequence when its answer
ends. What the pool gives up is copied to memory, if there is some for that. It comes back if that
takes less time than computing it again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from localllm.engine.disk_tier import DiskTier, Fetch, Wanted
from localllm.engine.kv_files import Shape
from localllm.engine.kv_pages import Page
from localllm.engine.ram_tier import RamTier

#: The disk takes this share of what is free, and no more than so much.
DISK_SHARE = 0.1
DISK_MOST = 20 << 30
#: Contents that are read at once: memory that they take until they are in the pool.
FETCH_BYTES = 64 << 20
#: How long a service waits at its start to know what lies on the disk.
READY_SECONDS = 5.0
#: How much a new measurement counts.
_NEW_SHARE = 0.3
#: A rate that was too slow is taken for a little better each time: once, it is tried again.
_FORGIVEN = 1.05

log = logging.getLogger("localllm.engine")


@dataclass(frozen=True)
class TierOptions:
    """ram_bytes: memory for what the pool gives up. disk: whether pages are written to the disk.
    disk_bytes: what all models' pages may take there, None: `DISK_SHARE` of what is free."""

    ram_bytes: int = 0
    disk: bool = True
    disk_bytes: int | None = None


class Blocks(Protocol):
    """Contents of the pool's blocks; see `Runner`."""

    def read_block(self, group: int, block: int, n_tokens: int) -> bytes: ...

    def write_block(self, group: int, block: int, content: bytes) -> None: ...


@dataclass(frozen=True)
class TierState:
    """Figures of one moment; the counts only grow."""

    ram_bytes: int = 0
    disk_bytes: int = 0
    disk_pages: int = 0
    written_pages: int = 0
    damaged_pages: int = 0
    evicted_pages: int = 0
    skipped_pages: int = 0  # that were not written: no room, or no time
    stopped: bool = False  # nothing is written any more


@dataclass
class _Rate:
    """Bytes per second, as far as it was measured."""

    bytes_per_s: float | None = None

    def seconds(self, n_bytes: int) -> float:
        return n_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    def observe(self, n_bytes: int, seconds: float) -> None:
        if n_bytes:
            new = n_bytes / max(seconds, 1e-9)
            old = new if self.bytes_per_s is None else self.bytes_per_s
            self.bytes_per_s = old + _NEW_SHARE * (new - old)

    def forgive(self) -> None:
        if self.bytes_per_s is not None:
            self.bytes_per_s *= _FORGIVEN


@dataclass
class Cold:
    """Pages of one sequence that come back: what of them is in memory, and what has to be read."""

    contents: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    to_read: list[tuple[Page, tuple[int, ...]]] = field(default_factory=list)

    def content(self, page: Page, group: int) -> bytes | None:
        return self.contents.get(page.name, {}).get(group)


class KvTiers:
    """blocks: of the pool; all methods are for the thread that uses it. root: the folder of all
    models' pages; folder: below it, of this model's."""

    def __init__(
        self, options: TierOptions, blocks: Blocks, shape: Shape, root: Path, folder: Path
    ) -> None:
        self._blocks, self._shape = blocks, shape
        self._ram = RamTier(options.ram_bytes)
        self._keeps_ram = options.ram_bytes > 0
        self._disk: DiskTier | None = None
        self._disk_rate = _Rate()
        if options.disk:
            cap = options.disk_bytes
            cap = default_disk_bytes(root) if cap is None else cap
            self._disk = DiskTier(root, folder, shape, cap)

    def wait_ready(self) -> None:
        if self._disk is not None and not self._disk.ready.wait(READY_SECONDS):
            log.warning("what lies in the KV cache on the disk is not known yet")

    # ---- into the tiers --------------------------------------------------------------------------

    def keep(self, page: Page, blocks: Sequence[int]) -> None:
        """Writes a page to the disk, if it is not there. blocks [n_groups], -1: not there."""
        if self._disk is None or self._disk.stopped or self._disk.get(page.name) is not None:
            return
        contents = [
            self._blocks.read_block(group, block, len(page.tokens)) if block >= 0 else b""
            for group, block in enumerate(blocks)
        ]
        self._disk.keep(page, contents)

    def cool(self, page: Page, group: int, block: int) -> None:
        """The pool gives a block up."""
        if self._keeps_ram and self._ram.get(page.name, group) is None:
            content = self._blocks.read_block(group, block, len(page.tokens))
            self._ram.put(page, group, content)

    def touch(self, names: Sequence[bytes]) -> None:
        """Pages of one sequence, first to last, were used."""
        self._ram.touch(names)
        if self._disk is not None:
            self._disk.touch(names)

    # ---- what is in them -------------------------------------------------------------------------

    def get(self, name: bytes) -> Page | None:
        page = self._ram.index.get(name)
        return page if page is not None or self._disk is None else self._disk.get(name)

    def children(self, parent: bytes, first_token: int) -> list[Page]:
        found = self._ram.index.children(parent, first_token)
        return found + (self._disk.children(parent, first_token) if self._disk else [])

    def holds(self, name: bytes, group: int) -> bool:
        in_ram = self._ram.get(name, group) is not None
        return in_ram or (self._disk is not None and self._disk.holds(name, group))

    # ---- out of them -----------------------------------------------------------------------------

    def collect(self, wanted: Wanted) -> Cold:
        """What of the pages is in memory now, and what is not."""
        cold = Cold()
        for page, groups in wanted:
            unread = []
            for group in groups:
                content = self._ram.get(page.name, group)
                if content is None and self._disk is not None:
                    content = self._disk.pending(page.name, group)
                if content is None:
                    unread.append(group)
                else:
                    cold.contents.setdefault(page.name, {})[group] = content
            if unread:
                cold.to_read.append((page, tuple(unread)))
        return cold

    def is_worth(self, cold: Cold, seconds: float) -> bool:
        """Whether to read is quicker than to compute in so many seconds. A rate that nobody
        measured is measured now."""
        n_bytes = sum(self._shape.block_bytes[g] for _, groups in cold.to_read for g in groups)
        if self._disk_rate.seconds(n_bytes) < seconds:
            return True
        self._disk_rate.forgive()
        return False

    def fetch(self, cold: Cold, done: Callable[[Fetch], None]) -> Fetch:
        """Reads; `done` is called from another thread."""
        assert self._disk is not None
        return self._disk.fetch(cold.to_read, done)

    def arrived(self, cold: Cold, fetch: Fetch) -> None:
        """What was read belongs to what is in memory."""
        self._disk_rate.observe(fetch.n_bytes, fetch.seconds)
        for name, contents in fetch.contents.items():
            cold.contents.setdefault(name, {}).update(contents)

    def restore(self, group: int, block: int, content: bytes) -> None:
        self._blocks.write_block(group, block, content)

    # ---- the whole -------------------------------------------------------------------------------

    def state(self) -> TierState:
        disk = self._disk
        if disk is None:
            return TierState(ram_bytes=self._ram.n_bytes)
        return TierState(
            ram_bytes=self._ram.n_bytes,
            disk_bytes=disk.used_bytes,
            disk_pages=len(disk),
            written_pages=disk.n_written,
            damaged_pages=disk.n_damaged,
            evicted_pages=disk.n_evicted,
            skipped_pages=disk.n_skipped,
            stopped=bool(disk.stopped),
        )

    @property
    def n_read(self) -> int:
        """Pages that came from the disk. From any thread."""
        return 0 if self._disk is None else self._disk.n_read

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was kept is on the disk in so many seconds."""
        return self._disk is None or self._disk.flush(timeout_s)

    def close(self) -> None:
        self._ram.clear()
        if self._disk is not None:
            self._disk.close()


def default_disk_bytes(root: Path) -> int:
    """`DISK_SHARE` of what is free where `root` lies or will lie."""
    folder = root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return min(DISK_MOST, int(free * DISK_SHARE))
