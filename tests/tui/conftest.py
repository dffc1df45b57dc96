"""Keys and clicks of a test are done when the app has settled."""

from __future__ import annotations

import pytest
from tui.waiting import settled


@pytest.fixture(autouse=True)
def _settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows `press`, `click` and `pause` sees all of what they led to."""
    monkeypatch.setattr("textual.app.wait_for_idle", settled)
    monkeypatch.setattr("textual.pilot.wait_for_idle", settled)
    # It would send every widget a message, each time.
    monkeypatch.setattr("textual.pilot.Pilot._wait_for_screen", settled)
