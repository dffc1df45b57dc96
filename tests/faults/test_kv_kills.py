"""kill -9 while pages are written: what was said to be there is, and all that is there is right."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from stand_ins import kv_writer

ROOT = Path(__file__).resolve().parents[2]


def test_kills_while_pages_are_written(tmp_path: Path, full: bool) -> None:
    rng = random.Random(1)
    n_cut = n_said = 0
    for seed in range(200 if full else 10):
        root = tmp_path / f"{seed % 10}"  # also over what an earlier one left
        process = subprocess.Popen(
            [sys.executable, kv_writer.__file__, str(root), str(seed)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        said = [int(process.stdout.readline())]
        timer = threading.Timer(rng.random() * 0.15, process.kill)
        timer.start()
        said += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
        assert process.wait() == -9
        folder = root / "model" / "key"
        n_cut += any(path.suffix == ".tmp" for path in folder.iterdir())
        tier = kv_writer.open_tier(root)
        assert not any(path.suffix == ".tmp" for path in folder.iterdir())
        assert tier.n_damaged == 0 and len(tier) == len(list(folder.iterdir()))
        written = kv_writer.pages(seed, said[-1] + 1)
        assert all(tier.get(page.name) == page for page in written)
        checked = threading.Event()
        fetch = tier.fetch([(page, (0, 1)) for page in written], lambda fetch, e=checked: e.set())
        assert checked.wait(60) and len(fetch.contents) == len(written)
        for page in written:
            assert [fetch.contents[page.name][g] for g in (0, 1)] == kv_writer.contents(page)
        n_said += len(said)
        tier.close()
    assert n_cut > 0 or not full
    assert n_said > 20
