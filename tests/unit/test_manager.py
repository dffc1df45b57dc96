"""Several models under one budget: who is loaded, who goes, who waits, and who is told what."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins.conditions import WAIT_S

from localllm.engine.request import ServiceState
from localllm.errors import ArgumentError, CancelledError, FileError, FormatError, QueueFullError
from localllm.server import keep_alive, manager, shelf
from localllm.server.errors import RequestError
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile, Need, OpenOptions, Room
from localllm.server.shelf import Item, Shelf
from localllm.store.index import Store

GB = 10**9


class FakeService:
    def __init__(self, name: str, closed: list[str]) -> None:
        self.info: Any = SimpleNamespace(name=name, n_ctx=512, recommended={"top_k": 1})
        self._closed = closed
        self.lost: FileError | None = None

    def submit(self, request: Any, emit: Any) -> Any:
        raise AssertionError

    def state(self) -> ServiceState:
        return ServiceState()

    def close(self) -> None:
        self._closed.append(self.info.name)


class FakeLoader:
    """Models of a few GB each; `gates` hold loads until they are set, `broken` ones fail."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.broken: set[str] = set()
        self.gates: dict[str, threading.Event] = {}

    def need(self, item: Item, room: Room) -> Need:
        n_bytes = self.sizes[item.names[0]] * GB
        fits = n_bytes <= room.free_bytes
        return Need(n_bytes, fits, n_bytes if fits else 0)

    def open(self, item: Item, room: Room | None, progress: Callable[[float], None]) -> FakeService:
        name = item.names[0]
        gate = self.gates.get(name)
        while gate is not None and not gate.wait(0.002):
            progress(0.5)
        if name in self.broken:
            raise FormatError(f"{name} is damaged")
        self.opened.append(name)
        return FakeService(name, self.closed)


def item(name: str) -> Item:
    return Item(ModelFile(Path(name), name), OpenOptions(), (name,), 1, sampling={"seed": 3})


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    here = classmethod(lambda cls: Room(100 * GB, 100 * GB))
    monkeypatch.setattr(manager.Room, "here", here)
    monkeypatch.setattr(manager, "DRAIN_AFTER_S", 0.05)


def with_models(
    test: Callable[[Manager, FakeLoader], Awaitable[None]],
    budget: int = 10,
    keep_s: float = math.inf,
    **sizes: int,
) -> FakeLoader:
    loader = FakeLoader(sizes)

    async def body() -> None:
        models = Manager(Shelf([item(name) for name in sizes]), loader, budget * GB, keep_s)
        try:
            await asyncio.wait_for(test(models, loader), 20)
        finally:
            await models.close()
        assert all(held.n_answering == held.n_waiting == 0 for held in models._held.values())

    asyncio.run(body())
    assert sorted(loader.opened) == sorted(loader.closed)  # nothing is left open
    return loader


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_loaded_on_first_use_once_for_all_who_ask() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        assert [card.status for card in await models.cards()] == ["unloaded", "unloaded"]
        leases = await asyncio.gather(*(models.lease("a") for _ in range(20)))
        assert loader.opened == ["a"] and len({id(lease.service) for lease in leases}) == 1
        assert leases[0].defaults == {"top_k": 1, "seed": 3}
        assert [card.status for card in await models.cards()] == ["loaded", "unloaded"]
        (row,) = models.rows()
        assert (row.answering, row.n_bytes, row.expires_s) == (20, GB, None)
        for lease in leases:
            lease.release()
            lease.release()  # once counts
        assert models.rows()[0].answering == 0
        first = await models.lease(None)
        assert first.name == "a"
        first.release()
        with pytest.raises(RequestError, match="there is no model 'c'"):
            await models.lease("c")

    with_models(test, a=1, b=1)


def test_what_lost_its_file_goes_and_is_loaded_again() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        first, other = await models.lease("a"), await models.lease("a")
        first.service.lost = FileError("a was cut short")  # type: ignore[misc]
        first.release()
        waiting = asyncio.create_task(models.lease("a"))
        await until(lambda: models.rows()[0].waiting == 1)
        assert not loader.closed  # the other one is told first
        other.release()
        again = await waiting
        assert loader.closed == ["a"] and loader.opened == ["a", "a"]
        assert again.service is not first.service
        again.release()
        assert [row.status for row in models.rows()] == ["loaded"]

    with_models(test, a=1)


def test_the_least_recently_used_goes_but_none_that_answers() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        for name in ("a", "b", "c", "a"):
            (await models.lease(name)).release()
        (await models.lease("d")).release()  # 4 of 10 + 3 * 3
        assert loader.closed == ["b"]
        held = [await models.lease(name) for name in ("a", "c")]
        (await models.lease("b")).release()
        assert loader.closed == ["b", "d"] and models.used_bytes == 9 * GB
        for lease in held:
            lease.release()

    with_models(test, a=3, b=3, c=3, d=3)


def test_who_gets_no_memory_waits_and_is_told_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "WAIT_S", 0.15)

    async def test(models: Manager, loader: FakeLoader) -> None:
        first = await models.lease("a")
        with pytest.raises(RequestError, match=r"b needs 6.0 GB; of 10.0 .* a .6.0 GB") as caught:
            await models.lease("b")
        assert caught.value.kind.status == 503 and caught.value.headers["retry-after"] == "5"
        (await models.lease("a")).release()  # new requests for it are taken again
        monkeypatch.setattr(manager, "WAIT_S", 10.0)
        waiting = asyncio.ensure_future(models.lease("b"))
        await asyncio.sleep(0.02)
        first.release()
        (await waiting).release()
        assert loader.opened == ["a", "b"] and loader.closed == ["a"]

    with_models(test, a=6, b=6)


def test_a_model_without_a_pause_lets_others_have_a_turn() -> None:
    """Answers of `a` overlap without end; `b` still gets in, and `a` again after it."""

    async def test(models: Manager, loader: FakeLoader) -> None:
        n_given = {"a": 0, "b": 0}
        over = False

        async def client(name: str, shift_s: float) -> None:
            await asyncio.sleep(shift_s)
            while not over:
                lease = await models.lease(name)
                await asyncio.sleep(0.02)
                lease.release()
                n_given[name] += 1

        clients = [asyncio.ensure_future(client("a", i * 0.01)) for i in range(3)]
        await until(lambda: n_given["a"] > 5)
        clients.append(asyncio.ensure_future(client("b", 0)))
        await until(lambda: n_given["b"] > 5)
        before = n_given["a"]
        await until(lambda: n_given["a"] > before + 5)
        over = True
        await asyncio.gather(*clients)

    loader = with_models(test, a=6, b=6)
    assert loader.opened[:3] == ["a", "b", "a"]


def test_a_load_stops_nobody_else() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        loader.gates["b"] = threading.Event()
        waiting = [asyncio.ensure_future(models.lease("b")) for _ in range(10)]
        await until(lambda: any(row.progress == 0.5 for row in models.rows()))
        for _ in range(100):
            (await models.lease("a")).release()
            await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        (row,) = [row for row in models.rows() if row.name == "b"]
        assert (row.status, row.waiting) == ("loading", 10)
        loader.gates["b"].set()
        for lease in await asyncio.gather(*waiting):
            lease.release()

    with_models(test, a=1, b=1)


def test_many_loads_do_not_hold_up_who_is_loaded() -> None:
    names = {f"m{i}": 1 for i in range(9)}

    async def test(models: Manager, loader: FakeLoader) -> None:
        (await models.lease("m0")).release()
        gate = threading.Event()
        loader.gates = {f"m{i}": gate for i in range(1, 9)}
        waiting = [asyncio.ensure_future(models.lease(name)) for name in loader.gates]
        await asyncio.sleep(0.05)
        for _ in range(20):
            (await asyncio.wait_for(models.lease("m0"), 2)).release()
        gate.set()
        for lease in await asyncio.gather(*waiting):
            lease.release()

    with_models(test, **names)


def test_a_failed_load_is_told_to_those_who_wait() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        (await models.lease("a")).release()
        loader.broken.add("b")
        told = await asyncio.gather(
            *(models.lease("b") for _ in range(5)), models.lease("a"), return_exceptions=True
        )
        assert all(isinstance(each, FormatError) for each in told[:5])
        told[5].release()  # type: ignore[union-attr]
        assert models.used_bytes == GB and [row.name for row in models.rows()] == ["a"]
        loader.broken.clear()
        (await models.lease("b")).release()

    with_models(test, a=1, b=1)


def test_a_client_that_leaves_while_it_waits_leaves_nothing() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        loader.gates["a"] = threading.Event()
        waiting = [asyncio.ensure_future(models.lease("a")) for _ in range(3)]
        await until(lambda: bool(models.rows()) and models.rows()[0].waiting == 3)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert models.rows()[0].waiting == 0
        loader.gates["a"].set()
        # Its time ran though nobody ever had it. The thread that closes it ends before its row.
        await until(lambda: loader.closed == ["a"] and not models.rows())
        assert not models._held

    with_models(test, a=1, keep_s=0.05)


def test_so_many_may_wait_for_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "MAX_WAITING", 2)

    async def test(models: Manager, loader: FakeLoader) -> None:
        loader.gates["a"] = threading.Event()
        waiting = [asyncio.ensure_future(models.lease("a")) for _ in range(2)]
        await until(lambda: bool(models.rows()) and models.rows()[0].waiting == 2)
        with pytest.raises(QueueFullError):
            await models.lease("a")
        loader.gates["a"].set()
        for lease in await asyncio.gather(*waiting):
            lease.release()

    with_models(test, a=1)


def test_keep_alive() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        (await models.lease("a", keep_s=0.0)).release()
        await until(lambda: loader.closed == ["a"])
        (await models.lease("a")).release()  # the server's own time again
        assert 900 < (models.rows()[0].expires_s or 0) <= 1000
        (await models.lease("a", keep_s=math.inf)).release()
        assert models.rows()[0].expires_s is None
        busy = await models.lease("a", keep_s=0.0)
        await asyncio.sleep(0.02)
        assert len(loader.closed) == 1
        busy.release()
        await until(lambda: len(loader.closed) == 2)

    with_models(test, a=1, keep_s=1000)


def test_a_model_that_stays_does_so_when_it_is_loaded_again() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        first = item("a")
        service = loader.open(first, Room(10 * GB, 10 * GB), lambda share: None)
        models.adopt(first, service, 6 * GB)
        assert models.rows()[0].expires_s is None
        (await models.lease("b")).release()
        assert loader.closed == ["a"]  # there was no room for both
        (await models.lease("a", keep_s=5)).release()
        assert 4 < (models.rows()[0].expires_s or 0) <= 5
        (await models.lease("b")).release()
        (await models.lease("a")).release()
        assert [row.expires_s for row in models.rows()] == [None]

    with_models(test, a=6, b=6, keep_s=1000)


def test_stop() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        assert await models.stop("a") is None
        (await models.lease("a")).release()
        row = await models.stop("a")
        assert row is not None and row.answering == 0 and loader.closed == ["a"]
        lease = await models.lease("a")
        row = await models.stop("a")
        assert row is not None and row.answering == 1 and loader.closed == ["a"]
        lease.release()
        await until(lambda: loader.closed == ["a", "a"])
        with pytest.raises(RequestError):
            await models.stop("zz")

    with_models(test, a=1)


def test_stop_under_constant_requests() -> None:
    """There is never a moment without one: still it ends, and then they go on."""

    async def test(models: Manager, loader: FakeLoader) -> None:
        answered: list[str] = []

        async def ask() -> None:
            """Has the next one before it lets this one go, if it can be had."""
            lease = await models.lease("a")
            while len(answered) < 40:
                following = asyncio.ensure_future(models.lease("a"))
                await asyncio.wait({following}, timeout=0.5)
                await asyncio.sleep(0.005)
                lease.release()
                answered.append(lease.name)
                lease = await following
            lease.release()

        asking = asyncio.ensure_future(ask())
        await until(lambda: len(answered) > 5)
        assert not loader.closed
        row = await models.stop("a")
        assert row is not None and row.answering
        await until(lambda: loader.closed == ["a"])
        n_before = len(answered)
        await asking
        assert n_before < 40 == len(answered) and loader.opened == ["a", "a"]
        assert loader.closed == ["a"]  # once: it is not stopped for ever

    with_models(test, a=1)


def test_the_end_stops_loads_and_tells_those_who_wait() -> None:
    async def test(models: Manager, loader: FakeLoader) -> None:
        busy = await models.lease("a")
        loader.gates["b"] = threading.Event()  # never set: its progress is what ends it
        waiting = [asyncio.ensure_future(models.lease(name)) for name in ("b", "c")]
        await asyncio.sleep(0.05)
        models.end_waits()
        for told in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(told, CancelledError)
        with pytest.raises(CancelledError):
            await models.lease("a")
        busy.release()

    loader = with_models(test, a=6, b=4, c=6)
    assert loader.opened == ["a"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("5m", 300), ("1h30m", 5400), (0, 0), ("0", 0), (-1, math.inf), ("-1", math.inf), ("90", 90),
     ("-5m", math.inf), ("250ms", 0.25), (1.5, 1.5), (10**400, 1e12)],
)  # fmt: skip
def test_times(value: Any, expected: float) -> None:
    assert keep_alive.seconds(value) == expected


@pytest.mark.parametrize("value", ["", "m", "5 m", "5d", "nan", math.nan, True, [], "1" * 100])
def test_no_times(value: Any) -> None:
    with pytest.raises(ArgumentError, match="keep_alive"):
        keep_alive.seconds(value)


def test_the_store_is_the_shelf_where_no_model_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Callable[[str, str], Path]
) -> None:
    monkeypatch.setattr(shelf, "_store", lambda: Store(tmp_path))
    models = Shelf([])
    assert models.items() == [] and models.first is None
    (tmp_path / "one@1b.gguf").write_bytes(tiny("llama", "F32").read_bytes())
    assert models.first is not None and models.first.names == ("one:1b",)
    (tmp_path / "two@1b.gguf").write_bytes(b"GGUF")
    assert [each.names[0] for each in models.items()] == ["one:1b", "two:1b"]
    assert models.first is None
    assert models.find("one:1b").key == models.items()[0].key
    for name in ("/etc/passwd", "./one@1b.gguf", str(tmp_path / "one@1b.gguf"), "x" * 9999, "\0"):
        with pytest.raises(RequestError) as caught:
            models.find(name)
        assert caught.value.kind.status == 404
