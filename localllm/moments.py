"""Points in time and spans of it, as programs and people write them."""

from __future__ import annotations

import datetime
import re
import time

from localllm.errors import ArgumentError

_UNITS = {"day": 86400, "hour": 3600, "minute": 60}
_LETTERS = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60}
_SPAN = re.compile(r"([0-9]{1,5})([wdhm])", re.ASCII | re.IGNORECASE)


def iso(seconds: float | None = None) -> str:
    """A point in time (seconds since 1970; None: now) in UTC, as ISO 8601 to the second."""
    if seconds is None:
        seconds = time.time()
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.isoformat(timespec="seconds")


def ago(moment: str | None, now: datetime.datetime | None = None) -> str:
    """How long ago a point in time was, in its largest unit: `3 days ago`. What is no ISO 8601 with
    a time zone is a dash."""
    try:
        then = datetime.datetime.fromisoformat(moment or "")
        passed = ((now or datetime.datetime.now(datetime.timezone.utc)) - then).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return "-"
    for unit, length in _UNITS.items():
        if passed >= length:
            n = int(passed // length)
            return f"{n} {unit}{'' if n == 1 else 's'} ago"
    return "just now"


def span(text: str) -> int:
    """The seconds in `7d`, `12h`, `30m` or `2w`. Raises `ArgumentError`."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(
            f"{text[:80]!a} is no span of time", "It is a number and a unit: 30m, 12h, 7d, 2w."
        )
    return int(match[1]) * _LETTERS[match[2].lower()]
