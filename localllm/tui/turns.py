"""One task at a time, where several change the same things between their awaits."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])


class Turns:
    """`async with` waits until no other task is within; the one that is may enter again."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._depth = 0

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._task is not task:
            await self._lock.acquire()
            self._task = task
        self._depth += 1

    async def __aexit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._task = None
            self._lock.release()


def in_turn(method: Method) -> Method:
    """A method that runs within the `turns` of its object."""

    @functools.wraps(method)
    async def taken(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with self.turns:
            return await method(self, *args, **kwargs)

    return cast("Method", taken)
