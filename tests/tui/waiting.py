"""Waiting for what a screen comes to show, and for an app to have done all that it was told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from textual._context import active_app
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot

WAIT_S = 30.0


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    """Looks whenever the app has settled, so never at half of a change. Fails with what the screen
    shows if the condition does not come true."""
    end = time.monotonic() + WAIT_S
    await pilot.pause()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it never came true; the screen shows:\n" + screen_text(pilot.app))
        await asyncio.sleep(0.005)
        await pilot.pause()


async def settled(*_: object) -> bool:
    """Waits until the app of this context has worked off every message and is drawn: what remains
    waits for a timer or for a thread. Takes the place of `textual._wait.wait_for_idle`, which
    guesses by the computing time of the process and guesses wrong on a loaded machine. True, unless
    the app has ended."""
    app, loop = active_app.get(), asyncio.get_running_loop()
    end = time.monotonic() + WAIT_S
    while not app._exit and app._exception is None:
        if time.monotonic() > end:
            raise AssertionError(f"{app.screen} does not come to rest")
        await asyncio.sleep(0)
        if loop._ready:  # type: ignore[attr-defined]
            continue
        busy = next((pump for pump in _pumps(app) if _is_busy(pump)), None)
        if busy is None and app._resize_event is None and not _draws(app):
            return True
        await asyncio.sleep(0.001 if busy is not None or app._resize_event is not None else 0)
    return False


def _pumps(app: App[Any]) -> Iterator[MessagePump]:
    yield app
    for screen in app.screen_stack:
        yield from screen.walk_children(with_self=True)


def _is_busy(pump: MessagePump) -> bool:
    """Whether it works on a message, or has one that it has not begun with."""
    if not pump._running or pump._closed:
        return False
    ready = pump._message_queue.ready_event
    waits = any(not each.done() for each in ready._waiters)  # type: ignore[attr-defined]
    return not waits or bool(pump._next_callbacks)


def _draws(app: App[Any]) -> bool:
    """Draws what has changed, without waiting for the next 60th of a second; whether there was
    anything."""
    screen = app.screen
    if not screen.is_current or app._batch_count:
        return False
    if not (
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    ):
        return False
    screen._on_timer_update()
    return True


def screen_text(app: App[Any]) -> str:
    """What the terminal would show, a line each."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def notes_of(app: App[Any]) -> str:
    """What was told at the edge of the screen."""
    return "\n".join(note.message for note in app._notifications)
