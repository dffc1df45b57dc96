"""Loads models from their files, as the manager asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localllm import paths
from localllm.engine.memory_plan import N_SERVED
from localllm.engine.request import Service
from localllm.server.opening import Need, Notice, Room, memory_need, open_service
from localllm.server.shelf import Item
from localllm.store.index import Store


@dataclass(frozen=True)
class FileLoader:
    """See `manager.Loader`. notice: is told what was chosen, a line each."""

    max_queue: int
    n_sequences: int = N_SERVED
    notice: Notice | None = None

    def need(self, item: Item, room: Room) -> Need:
        return memory_need(item.file, item.options, room, self.n_sequences)

    def open(self, item: Item, room: Room | None, progress: Callable[[float], None]) -> Service:
        service = open_service(
            item.file,
            item.options,
            max_queue=self.max_queue,
            n_sequences=self.n_sequences,
            progress=progress,
            notice=self._notice(item),
            room=room,
        )
        if item.ref is not None:
            Store(paths.current().models).touch(item.ref)
        return service

    def _notice(self, item: Item) -> Notice | None:
        if self.notice is None:
            return None
        notice, name = self.notice, item.names[0]
        return lambda text: notice(f"{name}: {text}")
