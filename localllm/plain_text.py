"""Texts as people may see them: escaped, measured in cells, and figures in their units.

Text that this program did not write (model output, names, licences, messages that quote a file) is
escaped before a terminal shows it: control characters, C1 and Unicode's bidirectional controls
appear as `\\x1b` and `\\u202e`, so they cannot move the cursor, recolour or reorder the screen.
"""

from __future__ import annotations

import re

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and new line, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Bidi_Control
    "\u2028\u2029"  # line and paragraph separator
    "\ud800-\udfff"  # no character: cannot be encoded
)
UNSAFE_TEXT = re.compile(f"[{_UNSAFE}]")
_UNSAFE_LINE = re.compile(f"[{_UNSAFE}\t\n]")


def escape(text: str) -> str:
    """Text of several lines, safe for a terminal."""
    return UNSAFE_TEXT.sub(_visible, text)


def escape_line(text: str) -> str:
    """Text that must stay on its line: new lines and tabs are escaped too."""
    return _UNSAFE_LINE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cells_of(text: str) -> int:
    """How many cells of a terminal a line takes: East Asian wide characters take two, combining
    ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0
        if unicodedata.combining(c) or unicodedata.category(c) == "Cf"
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def fit(text: str, cells: int) -> str:
    """The beginning of a line that takes at most so many cells."""
    for n, character in enumerate(text):
        cells -= cells_of(character)
        if cells < 0:
            return text[:n]
    return text


def size_text(n_bytes: int) -> str:
    """Bytes in decimal units, as package indexes and disks count: `92.9 MB`."""
    for power, unit in enumerate(("kB", "MB", "GB"), 1):
        if n_bytes < 1000:
            return f"{n_bytes} B"
        if n_bytes < 999.95 * 1000**power:
            return f"{n_bytes / 1000**power:.1f} {unit}"
    return f"{n_bytes / 1000**4:.1f} TB"


def count_text(n: int) -> str:
    """A large count in short form: `134.5M`."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= limit:
            return f"{n / limit:.1f}{unit}"
    return str(n)


def duration_text(seconds: float) -> str:
    """Minutes and seconds (`1:05`), or hours too (`2:01:05`)."""
    total = round(seconds)
    hours, minutes = total // 3600, total // 60 % 60
    return f"{hours}:{minutes:02}:{total % 60:02}" if hours else f"{minutes}:{total % 60:02}"
