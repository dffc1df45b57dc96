"""What comes from the terminal, made so that a paste stays one, whatever it holds.

Textual's parser (8.0) takes an escape character inside of a paste for the beginning of a key: text
after it is lost or typed, and each line of that is sent. It also takes text that was typed before
the program had the terminal, whose Enter is a line feed, for Ctrl+J.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END as END
from textual._xterm_parser import BRACKETED_PASTE_START as START
from textual._xterm_parser import XTermParser
from textual.message import Message

_ESC = "\x1b"
_MARK = "\udc1b"  # stands for an escape character in a paste; no decoder gives it
_BURST = 64
"""So many characters at once nobody types: they are a paste of a terminal that does not say so."""


class WholePastes(XTermParser):
    """Between the marks of a paste nothing is a key."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._in_paste = False
        self._held = ""  # of a paste: may be the beginning of its end
        self._passed = ""  # outside of one: may be the beginning of its begin
        self._is_first = True

    def feed(self, data: str) -> Iterable[Message]:
        """data: what was read at once; "" at the end."""
        if not data:
            return super().feed(data)
        if self._is_first:
            data, self._is_first = data.replace("\n", "\r"), False
        shielded = self._shielded(data)
        return map(_unshielded, super().feed(shielded)) if shielded else ()

    def _shielded(self, data: str) -> str:
        out = []
        while data:
            piece, data = self._pasted(data) if self._in_paste else self._typed(data)
            out.append(piece)
        return "".join(out)

    def _pasted(self, data: str) -> tuple[str, str]:
        """What is given on of a paste, and what is left."""
        data, self._held = self._held + data, ""
        text, found, rest = data.partition(END)
        if found:
            self._in_paste = False
        else:
            n = next(n for n in range(len(END) - 1, -1, -1) if text.endswith(END[:n]))
            self._held = text[len(text) - n :]
            text = text[: len(text) - n]
        return text.replace(_ESC, _MARK) + found, rest

    def _typed(self, data: str) -> tuple[str, str]:
        """As `_pasted`, outside of a paste."""
        at = (self._passed + data).find(START)
        if at < 0:
            self._passed = (self._passed + data)[1 - len(START) :]
            return _lines(data), ""
        end = at + len(START) - len(self._passed)
        self._in_paste, self._passed = True, ""
        return data[:end], data[end:]


def _lines(text: str) -> str:
    """An Enter amid a burst begins a line; only the last one sends."""
    if len(text) < _BURST or _ESC in text:
        return text
    body = text.rstrip("\r")
    return body.replace("\r", "\n") + text[len(body) :]


def _unshielded(message: Message) -> Message:
    if isinstance(message, events.Paste):
        message.text = message.text.replace(_MARK, _ESC)
    return message


def use_in(module: Any) -> None:
    """Makes a module of drivers read this way."""
    if getattr(module, "XTermParser", None) is XTermParser:
        module.XTermParser = WholePastes
