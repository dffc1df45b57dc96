"""What a conversation is called until its user says otherwise."""

from __future__ import annotations

import re
import unicodedata

LENGTH = 60
_MARKS = re.compile(r"^(?:[#>*\-`\s]+|\d+[.)]\s+)+")


def title_of(question: str) -> str:
    """The beginning of the first question: its first line with words in it, without Markdown's
    marks and what cannot be seen, cut between words."""
    for line in question[:4000].splitlines():
        seen = "".join(c if _is_seen(c) else " " for c in line)
        words = _MARKS.sub("", " ".join(seen.split())).rstrip("`* ")
        if any(c.isalnum() for c in words):
            return _clipped(words)
    return _clipped(" ".join("".join(c if _is_seen(c) else " " for c in question[:400]).split()))


def _is_seen(character: str) -> bool:
    # Joiners are parts of emoji and of Indic scripts.
    return unicodedata.category(character)[0] != "C" or character in "\u200c\u200d"


def _clipped(text: str) -> str:
    if len(text) <= LENGTH:
        return text
    cut = text[: LENGTH - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > LENGTH // 2 else cut).rstrip(" ,;:.") + "…"
