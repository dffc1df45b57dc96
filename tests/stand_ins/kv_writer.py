"""Writes pages of the KV cache until it is killed: `python kv_writer.py ROOT SEED`.

Says the number of each page once it is on the disk.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from localllm.engine.disk_tier import DiskTier
from localllm.engine.kv_files import Shape
from localllm.engine.kv_pages import Page, page_name

SHAPE = Shape(b"k" * 32, (200_000, 50_000))
LENGTH = 12  # pages of a sequence


def pages(seed: int, n: int) -> list[Page]:
    """Sequences of `LENGTH` pages, one after another."""
    rng, found = random.Random(seed), []
    parent = b""
    for i in range(n):
        if i % LENGTH == 0:
            parent = page_name(b"root", [1])
        tokens = tuple(rng.randrange(1 << 30) for _ in range(32))
        found.append(Page(page_name(parent, tokens), parent, tokens, i % LENGTH))
        parent = found[-1].name
    return found


def contents(page: Page) -> list[bytes]:
    return [page.name * (size // 32) + page.name[: size % 32] for size in SHAPE.block_bytes]


def open_tier(root: Path) -> DiskTier:
    tier = DiskTier(root, root / "model" / "key", SHAPE, 1 << 30)
    tier.ready.wait(60)
    return tier


def main(root: Path, seed: int) -> None:
    tier = open_tier(root)
    for i, page in enumerate(pages(seed, 10_000)):
        tier.keep(page, contents(page))
        if i % 3 == 0:
            tier.touch([page.name])
            tier.flush(60)
            print(i, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
