"""Waiting for what a screen comes to show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

WAIT_S = 30.0


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    """Fails with what the screen shows if it does not come true."""
    end = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError("it never came true; the screen shows:\n" + screen_text(pilot.app))
        await pilot.pause(0.005)
    await pilot.pause()


def screen_text(app: App[Any]) -> str:
    """What the terminal would show, a line each."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def notes_of(app: App[Any]) -> str:
    """What was told at the edge of the screen."""
    return "\n".join(note.message for note in app._notifications)
