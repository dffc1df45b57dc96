"""Conversations in groups by the day of their last use."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from localllm.tui.conversations.kinds import Conversation

GROUPS = ("Pinned", "Today", "Yesterday", "This week", "Older")
_WEEK = 7


def grouped(
    conversations: Sequence[Conversation], now: datetime.datetime
) -> list[tuple[str, list[Conversation]]]:
    """The groups that have members, in order; within them the order given. now: in local time,
    whose days count. This week is the last seven days."""
    groups: dict[str, list[Conversation]] = {name: [] for name in GROUPS}
    for each in conversations:
        groups["Pinned" if each.pinned else _day(each.updated, now)].append(each)
    return [(name, members) for name, members in groups.items() if members]


def day_text(seconds: float, now: datetime.datetime) -> str:
    """The hour of today, else the date."""
    moment = _local(seconds)
    return f"{moment:%H:%M}" if moment.date() == now.date() else f"{moment:%Y-%m-%d}"


def _day(seconds: float, now: datetime.datetime) -> str:
    days = (now.date() - _local(seconds).date()).days
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    return "This week" if days < _WEEK else "Older"


def _local(seconds: float) -> datetime.datetime:
    try:
        return datetime.datetime.fromtimestamp(seconds)
    except (ValueError, OverflowError, OSError):
        return datetime.datetime.fromtimestamp(0)
