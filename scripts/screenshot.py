"""Holds a conversation on a real terminal and draws its screen as docs/screenshot.svg, for the
README.

Usage: screenshot.py (in an environment with the test packages, where smollm2:135m is pulled).
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import sys
import time
from pathlib import Path

import pexpect
import pyte

TARGET = Path(__file__).resolve().parents[1] / "docs" / "screenshot.svg"
COMMAND = ("run", "smollm2:135m", "--seed", "4", "--temperature", "0.2")
TYPED = (
    "Why is the sky blue? Answer in two sentences.",
    "And at night?",
    "/stats",
)
COLUMNS, ROWS = 92, 40
CHAR_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 18
BACKGROUND, TEXT, PROMPT, DIM = "#16161e", "#c8d0e0", "#7fd1a0", "#7a8296"
_FOOTER = re.compile(r"^[0-9,]+ (of [0-9,]+ )?prompt tokens|^.* /help lists")


def screen_of_conversation() -> list[str]:
    """The lines on the screen after everything was typed and answered."""
    program = Path(sys.executable).with_name("localllm")
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = pexpect.spawn(
        str(program),
        list(COMMAND),
        encoding="utf-8",
        dimensions=(ROWS, COLUMNS),
        env=environment,
        timeout=120,
    )

    def watch(seconds: float) -> None:
        """Draws what comes until nothing has come for a while."""
        with contextlib.suppress(pexpect.TIMEOUT):
            while True:
                stream.feed(child.read_nonblocking(65536, timeout=seconds))

    for line in (*TYPED, None):
        deadline = time.monotonic() + 120
        while not any(row.rstrip() == ">>>" for row in screen.display[screen.cursor.y :]):
            if time.monotonic() > deadline:
                raise TimeoutError("the prompt did not come")
            watch(0.3)
        if line is not None:
            child.send(line)
            watch(0.5)
            child.send("\r")
            watch(0.5)
    child.close(force=True)
    return [line.rstrip() for line in screen.display]


def colour_of(line: str) -> str:
    """What a line is drawn in: pyte knows no dim text."""
    if line.startswith(">>>"):
        return PROMPT
    return DIM if _FOOTER.match(line) else TEXT


def svg(lines: list[tuple[str, str]]) -> str:
    """Lines of (text, colour) as a picture of a terminal."""
    width = COLUMNS * CHAR_WIDTH + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    rows = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * i + 14}" fill="{colour}" '
        f'xml:space="preserve">{html.escape(text)}</text>'
        for i, (text, colour) in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" '
        f'font-size="14">\n<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n'
        f"{rows}\n</svg>\n"
    )


def main() -> int:
    lines = ["$ localllm " + " ".join(COMMAND), *screen_of_conversation()]
    while not lines[-1] or lines[-1] == ">>>":
        lines.pop()
    drawn = [(line, PROMPT if i == 0 else colour_of(line)) for i, line in enumerate(lines)]
    TARGET.write_text(svg(drawn), encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
