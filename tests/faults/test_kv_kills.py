"""kill -9 while pages are written: what was said to be there is, and all that is there is right. A
conversation goes on after it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from stand_ins import kv_writer
from stand_ins.server_process import served

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


def test_the_third_turn_computes_only_what_is_new(
    tiny: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an answer's tokens are not those that its text encodes to."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    h, e = 104, 101  # together they are one token
    asked = {
        "max_tokens": 20,
        "temperature": 1,
        "seed": 1,
        "ignore_eos": True,
        "logit_bias": {h: 100, e: 100},
        "return_token_ids": True,
    }
    messages: list[dict[str, str]] = []
    known: list[int] = []
    for turn in (1, 2, 3):
        messages.append({"role": "user", "content": f"The {turn}. question is {turn} times long."})
        if turn != 2:
            server = served(tiny("llama", "F32"))
            running = server.__enter__()
        body = {"messages": messages, **asked}
        answer = httpx2.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).json()
        said = answer["choices"][0]["message"]["content"]
        ids = answer["prompt_token_ids"]
        assert set(said) == {"h", "e"} and "he" in said
        assert ids[: len(known)] == known
        n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert n_cached == max(0, len(known) - 1)  # the last token was sampled, not computed
        known = [*ids, *answer["choices"][0]["token_ids"]]
        messages.append({"role": "assistant", "content": said})
        if turn == 2:
            time.sleep(1)
            running.process.kill()
        if turn != 1:
            server.__exit__(None, None, None)
