"""Texts that would drive a terminal, or a program that reads markup, if they reached it."""

import re

NASTY = [
    "\x1b]0;OWNED\x07",  # the window's title
    "\x1b[2J\x1b[H",  # an empty screen
    "\x1b]52;c;T1dORUQ=\x07",  # the clipboard
    "\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[31;1mred\x1b[0m",
    "\x9b31mC1 red\x9d0;OWNED\x9c",
    '\x1bP$q"p\x1b\\DCS',
    "over\rwritten",
    "back\x08\x08\x08\x08",
    "\x7f\x00\x05\x0e\x0f",
    "abc\u202edcba\u202c\u2066x\u2069\u200f",
    "a\u2028b\u2029c",
    "\x1b[?1049h\x1b[?2004l\x1b[6n",
    "[bold]markup[/bold] \\e[31m %s {0}",
]
ALL = " ".join(NASTY)
#: What never reaches a terminal as it is.
BAD = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
