"""Several models under one budget of memory: loaded on first use, unloaded when nobody has asked
for a while or another one needs the room.

All of it runs on the server's loop; loads and unloads on threads of their own, so that answers of
other models go on meanwhile. A model that answers is never unloaded. Where one waits for room that
others hold by answers without end, these get no new requests until it had its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from localllm.engine import machine
from localllm.engine.memory_plan import gb
from localllm.engine.request import Service, ServiceState
from localllm.errors import CancelledError, QueueFullError
from localllm.server import models
from localllm.server.errors import RequestError
from localllm.server.keep_alive import DEFAULT_S
from localllm.server.models import Card, Lease, Row
from localllm.server.opening import Need, Room
from localllm.server.shelf import Item, Shelf

WAIT_S = 120.0
"""So long a model waits for memory that others hold."""
DRAIN_AFTER_S = 2.0
"""After so long those get no new requests."""
RETRY_AFTER_S = 5
MAX_WAITING = 512
"""Requests that may wait for the load of one model."""
_THREADS = 4

log = logging.getLogger("localllm.server")
T = TypeVar("T")


class Loader(Protocol):
    """Called from threads."""

    def need(self, item: Item, room: Room) -> Need:
        """What a model takes of a room. Raises the errors of a load."""

    def open(self, item: Item, room: Room | None, progress: Callable[[float], None]) -> Service:
        """Loads a model into a room. What `progress` raises ends the load."""


@dataclass(eq=False)
class _Held:
    """A model that is loaded, or has been asked for."""

    item: Item
    keep_s: float
    service: Service | None = None
    n_bytes: int = 0  # of the budget
    n_answering: int = 0
    n_waiting: int = 0
    task: asyncio.Task[None] | None = None  # a load or an unload
    progress: float = 0.0
    loaded_s: float = 0.0
    used_s: float = 0.0
    drained_for: set[_Held] = field(default_factory=set, repr=False)  # itself: it is to go
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def status(self) -> str:
        if self.service is not None:
            return models.LOADED
        if self.task is None:
            return models.NOT_LOADED
        return models.LOADING if self.progress < 1 else models.UNLOADING

    @property
    def draining(self) -> bool:
        """Whether new requests wait until it was unloaded."""
        return bool(self.drained_for)

    @property
    def may_go(self) -> bool:
        """Whether its unload costs nobody an answer."""
        if self.service is None or self.n_answering:
            return False
        return self.draining or not self.n_waiting


class Manager:
    """budget_bytes: for all models together; 0: the system does not tell how much there is."""

    def __init__(
        self, shelf: Shelf, loader: Loader, budget_bytes: int = 0, keep_s: float = DEFAULT_S
    ) -> None:
        self._shelf, self._loader = shelf, loader
        self.budget_bytes, self._keep_s = budget_bytes, keep_s
        self._held: dict[tuple[object, ...], _Held] = {}
        self._keeps: dict[tuple[object, ...], float] = {}  # of those that have a time of their own
        self._making_room = asyncio.Lock()
        self._change = asyncio.Event()  # replaced at every change
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = threading.Event()
        self.unloading: Callable[[str, ServiceState], None] = lambda name, state: None
        """Is told the last figures of each model that is unloaded."""
        self._threads = ThreadPoolExecutor(_THREADS, "load")

    def adopt(self, item: Item, service: Service, n_bytes: int, keep_s: float = math.inf) -> None:
        """Takes a model that is loaded already. keep_s: its own, also when it is loaded again."""
        now = time.monotonic()
        self._keeps[item.key] = keep_s
        self._held[item.key] = _Held(
            item, keep_s, service, n_bytes, progress=1.0, loaded_s=now, used_s=now
        )

    @property
    def used_bytes(self) -> int:
        return sum(held.n_bytes for held in self._held.values())

    async def open(self) -> None:
        """The server begins: the time of adopted models runs."""
        for held in list(self._held.values()):
            self._rest(held)

    async def cards(self) -> list[Card]:
        """All models that there are, under each of their names."""
        found = []
        for item in await asyncio.to_thread(self._shelf.items):
            held = self._held.get(item.key)
            info = held.service.info if held is not None and held.service is not None else None
            status = held.status if held is not None else models.NOT_LOADED
            found += [Card(name, item.created, info, status) for name in item.names]
        return found

    async def card(self, name: str) -> Card:
        """Of one model. Raises `RequestError` for a name that is none."""
        item = await asyncio.to_thread(self._shelf.find, name)
        held = self._held.get(item.key)
        if held is None:
            return Card(name, item.created, None, models.NOT_LOADED)
        info = held.service.info if held.service is not None else None
        return Card(name, item.created, info, held.status)

    def states(self) -> Mapping[str, ServiceState]:
        """Of the loaded models."""
        return {
            held.item.names[0]: held.service.state()
            for held in self._held.values()
            if held.service is not None
        }

    def rows(self) -> list[Row]:
        """The models that are loaded, or are on their way in or out."""
        now = asyncio.get_running_loop().time()
        return [
            Row(
                held.item.names[0],
                held.status,
                held.n_bytes,
                held.service.info.n_ctx if held.service is not None else 0,
                held.n_answering,
                held.n_waiting,
                held.progress,
                None if held.timer is None else max(0.0, held.timer.when() - now),
            )
            for held in self._held.values()
            if held.service is not None or held.task is not None
        ]

    async def lease(self, name: str | None, keep_s: float | None = None) -> Lease:
        """The model of a name, loaded if need be; None: the first one. keep_s: how long it stays
        after its last answer. Raises `RequestError` for a name that is none and for a model that
        gets no memory, and what loading raises."""
        return await self.lease_item(await asyncio.to_thread(self._find, name), name, keep_s)

    async def lease_file(self, path: Path, beside: str) -> Lease:
        """The model in a file of this machine; see `Shelf.of_file`. Raises `RequestError`."""
        item = await asyncio.to_thread(self._shelf.of_file, path, beside)
        if item is None:
            raise RequestError("this file is not served here", code="model_not_found", status=404)
        return await self.lease_item(item)

    async def lease_item(
        self, item: Item, name: str | None = None, keep_s: float | None = None
    ) -> Lease:
        """See `lease`."""
        if self._stopping.is_set():
            raise CancelledError("the server is stopping")
        held = self._held.get(item.key)
        if held is None:
            held = self._held[item.key] = _Held(item, self._own_keep_s(item))
        if held.n_waiting >= MAX_WAITING:
            raise QueueFullError(f"{held.n_waiting} requests wait for the model already")
        held.n_waiting += 1
        _stop_timer(held)
        try:
            service = await self._ready(held)
            held.n_answering += 1
        finally:
            held.n_waiting -= 1
            self._rest(held)
        if keep_s is not None:
            held.keep_s = keep_s
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                held.n_answering -= 1
                self._rest(held)

        defaults = {**service.info.recommended, **held.item.sampling}
        shown = held.item.names[0]
        return Lease(service, name or shown, shown, defaults, release)

    async def stop(self, name: str) -> Row | None:
        """Unloads a model, or if it answers, sees to it that it is when it has: new requests for it
        wait until then, and load it again. What it was before;
        None if it was not loaded. Raises `RequestError` for a name that is none."""
        item = await asyncio.to_thread(self._shelf.find, name)
        held = self._held.get(item.key)
        if held is None or held.service is None:
            return None
        row = next(row for row in self.rows() if row.name == held.item.names[0])
        held.drained_for.add(held)
        await self._unload_stopped(held)
        return row

    def end_waits(self) -> None:
        """The server is stopping: loads end, and those who wait for them are told."""
        self._stopping.set()
        self._wake()

    async def close(self) -> None:
        """Closes what is loaded, and waits for what is on its way."""
        self.end_waits()
        for held in self._held.values():
            _stop_timer(held)
        while tasks := [held.task for held in self._held.values() if held.task is not None]:
            await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._held.values():
            if held.service is not None:
                await asyncio.to_thread(held.service.close)
                held.service = None
        self._threads.shutdown()

    def _find(self, name: str | None) -> Item:
        if name is not None:
            return self._shelf.find(name)
        if (first := self._shelf.first) is not None:
            return first
        raise RequestError(
            "model is missing, and there are several here",
            "GET /v1/models lists them.",
            param="model",
            code="missing_parameter",
        )

    async def _ready(self, held: _Held) -> Service:
        """The service, once it is loaded and takes requests."""
        while held.service is None or held.draining:
            if held.task is None and held.service is not None:
                await self._changed(WAIT_S)
            else:
                if held.task is None:
                    held.task = self._start(self._load(held))
                await asyncio.shield(held.task)
            if self._stopping.is_set():
                raise CancelledError("the server is stopping")
        return held.service

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose error is for those who wait for it, if there are any."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled():
                done.exception()

        task.add_done_callback(over)
        return task

    async def _load(self, held: _Held) -> None:
        def progress(share: float) -> None:
            held.progress = min(share, 0.999)
            if self._stopping.is_set():
                raise CancelledError("the server is stopping")

        name = held.item.names[0]
        held.progress = 0.0
        try:
            room = await self._room_for(held)
            log.info("%s is being loaded", name)
            service = await self._loading(self._loader.open, held.item, room, progress)
        except BaseException as e:
            held.n_bytes = 0
            log.warning("%s was not loaded: %s", name, e)
            raise
        else:
            held.service, held.progress = service, 1.0
            held.loaded_s = held.used_s = time.monotonic()
        finally:
            held.task = None
            self._rest(held)

    async def _room_for(self, held: _Held) -> Room:
        """Memory for a model, which is its own from now on. Others that do not answer go for it,
        the least recently used first."""
        began, drained = time.monotonic(), False
        try:
            while True:
                async with self._making_room:
                    room = self._room()
                    need = await asyncio.to_thread(self._loader.need, held.item, room)
                    if need.fits or not self._others(held):
                        # Alone it is loaded as well as can be, or refused with the numbers.
                        held.n_bytes = need.held_bytes or min(need.needed_bytes, room.free_bytes)
                        return room
                    idle = [other for other in self._held.values() if other.may_go]
                    if idle:
                        await self._unload(min(idle, key=lambda other: other.used_s))
                        continue
                waited = time.monotonic() - began
                if waited >= WAIT_S or self._stopping.is_set():
                    raise self._no_room(held, need)
                if waited >= DRAIN_AFTER_S and not drained:
                    drained = True
                    self._drain(held, need.needed_bytes - room.usable_bytes)
                    continue  # what waits only for its own requests may go now
                following = WAIT_S if drained else DRAIN_AFTER_S
                await self._changed(following - waited)
        finally:
            for other in self._held.values():
                other.drained_for.discard(held)
            self._wake()

    def _room(self) -> Room:
        if not self.budget_bytes:
            return Room.here()
        here = Room.here()
        left = max(1, self.budget_bytes - self.used_bytes)
        return Room(self.budget_bytes, min(left, here.free_bytes or left))

    def _own_keep_s(self, item: Item) -> float:
        return self._keeps.get(item.key, self._keep_s)

    def _others(self, held: _Held) -> bool:
        return any(other.n_bytes for other in self._held.values() if other is not held)

    def _drain(self, waiting: _Held, n_bytes: int) -> None:
        """Keeps new requests from models that make up n_bytes, those first that were loaded
        first."""
        loaded = [held for held in self._held.values() if held.service is not None]
        for held in sorted(loaded, key=lambda held: held.loaded_s):
            if n_bytes <= 0:
                return
            held.drained_for.add(waiting)
            n_bytes -= held.n_bytes

    def _no_room(self, held: _Held, need: Need) -> Exception:
        if self._stopping.is_set():
            return CancelledError("the server is stopping")
        busy = [other for other in self._held.values() if other.n_bytes and other is not held]
        names = ", ".join(f"{other.item.names[0]} ({gb(other.n_bytes)})" for other in busy[:5])
        return RequestError(
            f"{held.item.names[0]} needs {gb(need.needed_bytes)}; of {gb(self.budget_bytes)} "
            f"for models {gb(self.used_bytes)} are held by models that answer: {names}",
            "Ask again later, or give the server more memory with --memory.",
            code="out_of_memory",
            status=503,
            type="server_error",
            headers={"retry-after": str(RETRY_AFTER_S)},
        )

    async def _unload(self, held: _Held) -> None:
        """Ends with the memory free. The model must be one that may go."""
        service, held.service = held.service, None
        assert service is not None
        self.unloading(held.item.names[0], service.state())
        _stop_timer(held)
        held.task = self._start(self._close(held, service))
        await asyncio.shield(held.task)

    async def _unload_stopped(self, held: _Held) -> None:
        if held.may_go and not self._stopping.is_set():
            await self._unload(held)

    async def _close(self, held: _Held, service: Service) -> None:
        try:
            await asyncio.to_thread(service.close)
            await asyncio.to_thread(machine.give_memory_back)
            log.info("%s was unloaded", held.item.names[0])
        finally:
            held.n_bytes, held.keep_s, held.task = 0, self._own_keep_s(held.item), None
            held.drained_for.clear()
            if not held.n_waiting:
                self._held.pop(held.item.key, None)
            self._wake()

    def _rest(self, held: _Held) -> None:
        """After each change of who has a model: from when nobody has it, its time runs."""
        held.used_s = time.monotonic()
        self._wake()
        if held.service is None:
            if not held.n_waiting and held.task is None:
                self._held.pop(held.item.key, None)
            return
        if held.service.lost is not None and held not in held.drained_for:
            log.error("%s is unloaded: %s", held.item.names[0], held.service.lost)
            held.drained_for.add(held)
        if held in held.drained_for and held.may_go:
            self._start(self._unload_stopped(held))
            return
        if held.n_answering or held.n_waiting or self._stopping.is_set():
            return
        _stop_timer(held)
        if held.keep_s < math.inf:
            loop = asyncio.get_running_loop()
            held.timer = loop.call_later(held.keep_s, self._expired, held)

    def _expired(self, held: _Held) -> None:
        held.timer = None
        if held.may_go and not self._stopping.is_set():
            self._start(self._unload(held))

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _changed(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._change.wait(), max(0.0, timeout_s))

    async def _loading(self, function: Callable[..., T], *args: object) -> T:
        """On threads of their own: the shared ones are for what takes no time."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _stop_timer(held: _Held) -> None:
    if held.timer is not None:
        held.timer.cancel()
        held.timer = None
