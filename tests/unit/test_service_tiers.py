"""A service with memory and a disk beside its pool: what was computed comes back bit for bit."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins.conditions import wait
from test_service import (
    COSTS,
    N_CTX,
    PARAMS,
    Answers,
    Tiny,
    ask,
    prompt,
    solo,
    with_pool,
)

from localllm import paths
from localllm.engine import loop
from localllm.engine.cost_curve import CostCurve
from localllm.engine.disk_tier import DiskTier, Fetch
from localllm.engine.kv_tier import KvTiers, TierOptions
from localllm.engine.open import OpenOptions, Parts, open_parts
from localllm.engine.request import Failed, Finished, Piece, Request
from localllm.engine.service import NativeService
from localllm.errors import CancelledError

SLOW = CostCurve((1, 64), (1.0, 64.0))  # nothing is quicker than to read
DISK = TierOptions(disk_bytes=1 << 28)
RAM = TierOptions(ram_bytes=1 << 28, disk=False)
TOP = replace(PARAMS, logprobs=20)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    return tmp_path


Open = Callable[..., NativeService]


@pytest.fixture
def served(tiny: Tiny) -> Iterator[Open]:
    """Opens a service; the one before it is closed as by kill -9 if `killed` is set."""
    opened: list[NativeService] = []

    def open_(
        tiers: TierOptions | None = DISK,
        arch: str = "llama",
        kv: str = "f16",
        costs: CostCurve = SLOW,
        n_pool: int = 2 * N_CTX,
        n_sequences: int = 4,
        digest: str = "sha256:a",
    ) -> NativeService:
        path = tiny(arch, "Q4_0")
        options = OpenOptions("native", n_ctx=N_CTX, kv_type=kv, n_threads=1, tiers=tiers)
        parts = open_parts(path, options)
        parts = with_pool(parts, n_sequences, n_pool, 64)
        opened.append(NativeService(parts, "tiny", digest, costs=costs))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def tiers_of(service: NativeService) -> KvTiers:
    assert service._tiers is not None
    return service._tiers


def computed(service: NativeService) -> int:
    return service._loop.counts.computed_tokens


def files() -> list[Path]:
    return [path for path in paths.current().kv.rglob("*") if path.is_file()]


def rows(service: NativeService, request: Request) -> tuple[object, int]:
    """All that an answer shows of its logits, and how much of its prompt was there."""
    answers = Answers(service, request)
    tokens, last = answers.result()
    return (tokens, answers.logprobs), last.usage.cached_tokens


@pytest.mark.parametrize(
    ("arch", "kv"), [("llama", "f16"), ("llama", "q8_0"), ("gemma3", "f16"), ("gemma3", "q8_0")]
)
def test_a_conversation_goes_on_after_a_restart(arch: str, kv: str, served: Open) -> None:
    first = prompt(1, 150)
    service = served(arch=arch, kv=kv)
    (tokens,), _ = ask(service, prompt=first)
    assert tiers_of(service).flush(5.0)  # a second on a quiet machine
    second = (*first, *tokens, *prompt(2, 10))
    # The process is gone as if it had been killed: nothing of it is closed.
    after = served(arch=arch, kv=kv)
    got, n_cached = rows(after, Request(second, TOP))
    assert n_cached == 150 + 19  # the end of the answer, too
    assert computed(after) == 1 + 10 + 19
    assert after.state().restored_tokens == 169 and after.state().kv_disk_pages >= 6
    fresh, n_cached = rows(served(None, arch=arch, kv=kv), Request(second, TOP))
    assert (got, n_cached) == (fresh, 0)
    # Regenerated, from the middle of a block: a part of one that is longer.
    third = (*second[:140], *prompt(3, 5))
    again = served(arch=arch, kv=kv)
    got, n_cached = rows(again, Request(third, TOP))
    assert n_cached == 140 or arch == "gemma3"
    assert got == rows(served(None, arch=arch, kv=kv), Request(third, TOP))[0]


def test_another_model_type_or_key_finds_nothing(served: Open) -> None:
    first = prompt(1, 150)
    service = served()
    ask(service, prompt=first, salt=b"alice")
    assert tiers_of(service).flush(10)
    for other in (served(digest="sha256:b"), served(kv="q8_0"), served()):
        assert ask(other, prompt=first)[1].usage.cached_tokens == 0
    assert ask(served(), prompt=first, salt=b"bob")[1].usage.cached_tokens == 0
    assert ask(served(), prompt=first, salt=b"alice")[1].usage.cached_tokens == 149


def test_a_file_that_was_replaced_finds_nothing_of_the_one_before(served: Open) -> None:
    """Under its old name, size and record: only its bytes are others."""
    first = prompt(1, 150)
    service = served()
    ask(service, prompt=first)
    assert tiers_of(service).flush(10)
    path = service._parts.path
    before, found = path.read_bytes(), path.stat()
    try:
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        other = served()
        assert other.info.partition != service.info.partition
        assert ask(other, prompt=first)[1].usage.cached_tokens == 0
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert ask(served(), prompt=first)[1].usage.cached_tokens == 149


def test_a_file_that_is_replaced_while_it_is_loaded_keeps_nothing_for_the_other(
    tiny: Tiny, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(tiny("llama", "Q4_0"), path)
    os.utime(path, (1, 1))

    def parts() -> Parts:
        return open_parts(path, OpenOptions("native", n_ctx=N_CTX, n_threads=1), n_sequences=2)

    before, during = parts(), parts()
    states = {before.file_state}  # the other one is asked when the file is not the same any more
    shutil.copy(tiny("qwen3", "Q4_0"), tmp_path / "new")
    os.utime(tmp_path / "new", (2, 2))
    (tmp_path / "new").replace(path)
    after = parts()
    states |= {during.file_state, after.file_state}
    for each in (before, during, after):
        each.engine.close()
    assert len(states) == 3


def test_what_may_not_be_stored_reaches_no_tier(served: Open) -> None:
    service = served(TierOptions(ram_bytes=1 << 28, disk_bytes=1 << 28), n_pool=N_CTX)
    for i in range(4):  # more than the pool holds
        ask(service, prompt=prompt(i, 300), may_store=False)
    assert tiers_of(service).flush(10)
    assert files() == [] and tiers_of(service).state().ram_bytes == 0


def test_a_page_holds_nothing_of_others(served: Open) -> None:
    """The end of a page, which its sequence does not reach, was another one's."""
    service = served(n_pool=N_CTX)
    for i in range(4):
        ask(service, prompt=prompt(i, 300), may_store=False)
    params = replace(PARAMS, max_tokens=1)
    ask(service, prompt=prompt(9, 33), params=params)
    assert tiers_of(service).flush(10)
    (page,) = [path for path in files() if path.read_bytes()[16] == 1]  # of one token
    content = page.read_bytes()[-service._runner.block_bytes[0] :]
    assert 0 < sum(byte != 0 for byte in content) <= len(content) // 32


@pytest.mark.parametrize("tiers", [RAM, DISK], ids=["ram", "disk"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_what_the_pool_gave_up_comes_back(arch: str, tiers: TierOptions, served: Open) -> None:
    service = served(tiers, arch=arch, n_pool=N_CTX, n_sequences=1)
    first = Request(prompt(1, 300), TOP)
    one, _ = rows(service, first)
    for i in range(5):
        ask(service, prompt=prompt(10 + i, 300))
    before = computed(service)
    again, n_cached = rows(service, first)
    assert again == one and n_cached == 299
    assert computed(service) - before == 1 + 19
    assert service.state().restored_tokens > 200


@pytest.mark.parametrize("tiers", [RAM, DISK], ids=["ram", "disk"])
def test_who_gave_its_blocks_up_gets_them_back(
    tiers: TierOptions, served: Open, tiny: Tiny
) -> None:
    requests = [
        Request(prompt(i, 40 + 9 * i), replace(PARAMS, seed=i, max_tokens=150)) for i in range(8)
    ]
    alone = solo(tiny("llama", "Q4_0"), "f16", requests)
    service = served(tiers, n_pool=N_CTX - 100, n_sequences=4)
    together = [Answers(service, request) for request in requests]
    assert [(each.result()[0], each.logprobs) for each in together] == alone
    state = service.state()
    assert state.preemptions > 0 and state.restored_tokens > 0 and state.blocks_used == 0
    # Nothing but what it gave up between two steps is computed twice.
    n_tokens = sum(40 + 9 * i + 149 for i in range(8))
    assert computed(service) - n_tokens <= 32 * state.preemptions


def test_no_step_waits_for_the_disk(served: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: which thread opens, reads, writes, renames and deletes."""
    service = served()
    calls: dict[str, int] = {}

    def counting(name: str) -> None:
        call = getattr(os, name)

        def counted(*args: object, **more: object) -> object:
            who = threading.current_thread().name
            calls[who] = calls.get(who, 0) + 1
            return call(*args, **more)

        monkeypatch.setattr(os, name, counted)

    for name in ("open", "read", "write", "replace", "unlink", "utime", "scandir", "fstat", "stat"):
        counting(name)
    (tokens,), _ = ask(service, prompt=prompt(1, 150))
    assert tiers_of(service).flush(10)
    other = served()
    assert ask(other, prompt=(*prompt(1, 150), *tokens, 7))[1].usage.cached_tokens == 169
    assert tiers_of(other).flush(10)
    assert calls["kv-disk-write"] > 20 and calls["kv-disk-read"] > 10
    assert "native-service" not in calls


def test_the_state_tells_what_does_not_reach_the_disk(served: Open) -> None:
    service = served(TierOptions(disk_bytes=1 << 17))
    disk = tiers_of(service)._disk
    assert disk is not None
    for first in (1, 2, 3):
        ask(service, prompt=prompt(first, 150))
        assert disk.flush(10)
    ask(service, prompt=prompt(4, 9))
    told = (disk.n_evicted, disk.n_skipped)
    assert sum(told) > 0 and not service.state().kv_disk_stopped
    disk.stopped = "no such device"
    ends_s = time.monotonic() + 10
    while not service.state().kv_disk_stopped:
        assert time.monotonic() < ends_s
        ask(service, prompt=prompt(5, 9))
    state = service.state()
    assert state.kv_disk_evicted >= told[0] and state.kv_disk_skipped >= told[1]


def test_others_go_on_while_the_disk_is_waited_for(
    served: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prompt(1, 150)
    ask(before := served(), prompt=first)
    assert tiers_of(before).flush(10)
    service = served()
    go, fetch = threading.Event(), DiskTier._fetch

    def late(*args: Any) -> None:
        go.wait(30)
        fetch(*args)

    monkeypatch.setattr(DiskTier, "_fetch", late)
    waiting = Answers(service, Request(first, PARAMS))
    cancelled = Answers(service, Request(first, PARAMS, n=2))
    wait(lambda: service.state().running + service.state().waiting == 2)
    for i in range(3):  # while the first one waits
        assert ask(service, prompt=prompt(20 + i, 30))[1].usage.generated_tokens == 20
    assert waiting.events.empty()
    cancelled.ticket.cancel()
    last = cancelled.events.until_end()[-1]
    assert isinstance(last, Failed) and isinstance(last.error, CancelledError)
    n_steps = service.state().steps
    time.sleep(0.05)
    assert service.state().steps == n_steps
    go.set()
    assert waiting.result()[1].usage.cached_tokens == 149
    assert service.state().blocks_used == 0


def test_what_is_quicker_to_compute_is_not_read(served: Open) -> None:
    first = prompt(1, 150)
    service = served(costs=COSTS)
    ask(service, prompt=first)
    assert tiers_of(service).flush(10)
    quick = CostCurve((1, 64), (1e-9, 2e-9))
    other = served(costs=quick)
    assert ask(other, prompt=first)[1].usage.cached_tokens == 149  # not measured yet
    third = served(costs=quick)
    tiers_of(third)._disk_rate.bytes_per_s = 1e6
    assert ask(third, prompt=first)[1].usage.cached_tokens == 0
    assert tiers_of(third)._disk_rate.bytes_per_s > 1e6  # it will be tried again


def test_what_is_dear_to_compute_is_read(served: Open) -> None:
    """The curve is of an empty context; what steps take now counts, too."""
    first = prompt(1, 150)
    ask(before := served(costs=COSTS), prompt=first)
    assert tiers_of(before).flush(10)
    for slower, dearer, n_cached in ((1.0, 1.0, 0), (3.0, 1.0, 149), (1.0, 3.0, 149)):
        service = served(costs=CostCurve((1, 64), (0.02, 0.02)))
        n_bytes = 5 * sum(service._runner.block_bytes)
        # 150 tokens take three steps: 47 ms. To read the pages takes twice that.
        tiers_of(service)._disk_rate.bytes_per_s = n_bytes / 0.094
        service._loop._slower, service._loop._dearer = slower, dearer
        assert ask(service, prompt=first)[1].usage.cached_tokens == n_cached


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_conversation_comes_in_parts(
    arch: str, served: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, fetch, n_fetches = prompt(1, 400), KvTiers.fetch, []
    service = served(arch=arch)
    ask(service, prompt=first)
    assert tiers_of(service).flush(10)
    other = served(arch=arch)

    def counted(*args: Any) -> Fetch:
        n_fetches.append(1)
        return fetch(*args)

    monkeypatch.setattr(loop, "FETCH_BYTES", 3 * sum(other._runner.block_bytes))
    monkeypatch.setattr(KvTiers, "fetch", counted)
    got, n_cached = rows(other, Request(first, TOP))
    assert n_cached == 399 and len(n_fetches) == 5
    assert got == rows(served(None, arch=arch), Request(first, TOP))[0]


def test_pages_that_are_damaged_under_way(served: Open) -> None:
    first = prompt(1, 150)
    ask(before := served(), prompt=first)
    assert tiers_of(before).flush(10)
    service, fresh = served(), served(None)
    third = next(path for path in files() if path.read_bytes()[20] == 2)
    third.write_bytes(third.read_bytes()[:-1] + b"\x55")
    got, n_cached = rows(service, Request(first, TOP))
    assert n_cached == 64 and tiers_of(service).state().damaged_pages == 1
    assert got == rows(fresh, Request(first, TOP))[0]
    # What was computed again is there again.
    assert tiers_of(service).flush(10) and third.exists()
    assert ask(served(), prompt=first)[1].usage.cached_tokens == 149


def test_a_full_disk_stops_no_answer(served: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    service = served()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for i in range(3):
        assert ask(service, prompt=prompt(i, 150))[1].usage.generated_tokens == 20
    assert tiers_of(service).flush(10) and files() == []


def test_random_conversations_over_restarts(served: Open) -> None:
    """Both tiers, a small pool and a small disk: answers equal those of a service without."""
    rng = random.Random(5)
    tiers = TierOptions(ram_bytes=1 << 17, disk_bytes=1 << 20)
    plain = served(None, arch="gemma3", n_pool=4 * N_CTX)
    service = served(tiers, arch="gemma3", n_pool=N_CTX - 100)
    talks: list[tuple[int, ...]] = [()] * 4
    n_cached = 0
    for turn in range(60):
        if turn % 20 == 19:
            service.close()
            service = served(tiers, arch="gemma3", n_pool=N_CTX - 100)
        i = rng.randrange(len(talks))
        talk = talks[i] if len(talks[i]) < 350 else talks[i][: rng.randrange(100)]
        asked = Request((*talk, *prompt(turn, rng.randint(1, 60))), replace(TOP, seed=turn))
        got, n = rows(service, asked)
        fresh, _ = rows(plain, replace(asked, salt=b"%d" % turn))
        assert got == fresh, turn
        n_cached += n
        tokens, _ = got  # type: ignore[misc]
        talks[i] = (*asked.prompt, *tokens[0])
        if rng.random() < 0.2:
            events = Answers(service, Request(prompt(turn, 200), replace(PARAMS, max_tokens=99)))
            assert isinstance(events.events.get(timeout=30), Piece | Finished)
            events.ticket.cancel()
    assert n_cached > 1000
