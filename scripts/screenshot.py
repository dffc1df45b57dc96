"""Runs commands for real and draws what they printed as docs/screenshot.svg, for the README.

Usage: screenshot.py (in an environment where localllm is installed and smollm2:135m is pulled).
"""

from __future__ import annotations

import html
import subprocess
import sys
import textwrap
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs" / "screenshot.svg"
COMMANDS = (
    ("run", "smollm2:135m", "Why is the sky blue?", "--seed", "4", "--verbose"),
    ("list",),
)
COLUMNS = 92
CHAR_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 18
BACKGROUND, TEXT, PROMPT = "#16161e", "#c8d0e0", "#7fd1a0"


def shown(command: tuple[str, ...]) -> str:
    """The command as a person would type it."""
    words = [f'"{word}"' if " " in word else word for word in command]
    return "$ localllm " + " ".join(words)


def output_of(command: tuple[str, ...]) -> list[str]:
    """What the command wrote to stdout and stderr, wrapped to the width of the picture."""
    program = Path(sys.executable).with_name("localllm")
    done = subprocess.run(
        [str(program), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    lines = done.stdout.rstrip().splitlines()
    return [piece for line in lines for piece in (textwrap.wrap(line, COLUMNS) or [""])]


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
    lines: list[tuple[str, str]] = []
    for command in COMMANDS:
        lines.append((shown(command), PROMPT))
        lines += [(text, TEXT) for text in output_of(command)]
        lines.append(("", TEXT))
    TARGET.write_text(svg(lines[:-1]), encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
