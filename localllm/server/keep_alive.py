"""How long a model stays loaded once nobody asks it: a number of seconds, or a text such as 5m."""

from __future__ import annotations

import math
import re
from typing import Any

from localllm.errors import ArgumentError

DEFAULT_S = 300.0
_LONGEST = 60  # characters
_WHOLE = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(value: Any) -> float:
    """Seconds; infinity for what is below 0. Raises `ArgumentError`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        found = float(max(-1, min(value, 1e12)))
    elif not isinstance(value, str) or len(value) > _LONGEST:
        raise _wrong(value)
    elif _NUMBER.fullmatch(value):
        found = float(value)
    elif _WHOLE.fullmatch(value):
        found = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))
        found = -found if value.startswith("-") else found
    else:
        raise _wrong(value)
    return math.inf if found < 0 else found


def _wrong(value: Any) -> ArgumentError:
    shown = ascii(value)[:_LONGEST] if isinstance(value, (str, float, int)) else "no time"
    return ArgumentError(
        f"keep_alive is {shown}", "It may be seconds, a time such as 5m or 1h30m, 0, or -1: forever"
    )
