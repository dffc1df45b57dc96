"""Text that nobody may obey on its way through a parser: hidden before, shown or exact after.

What a terminal would obey is no part of Markdown, and some of it ends lines for Python. Hidden,
each such character is one of Unicode's private plane 16, which is a letter like any other.
"""

from __future__ import annotations

import re

from localllm.plain_text import UNSAFE_TEXT, escape

_PLANE = 0x100000
_HIDDEN = re.compile(f"[{chr(_PLANE)}-{chr(_PLANE + 0xDFFF)}]")


def hide(text: str) -> str:
    """Text without a character that a terminal obeys, as long as it was."""
    return UNSAFE_TEXT.sub(lambda match: chr(_PLANE + ord(match[0])), text)


def exact(text: str) -> str:
    """What was hidden, as it came."""
    return _HIDDEN.sub(lambda match: chr(ord(match[0]) - _PLANE), text)


def shown(text: str) -> str:
    """What was hidden, and what a parser made (`&#x202e;`), safe for a terminal."""
    return escape(exact(text))
