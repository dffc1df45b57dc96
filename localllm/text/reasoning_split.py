"""An answer in a stream, taken apart: what is reasoning and what is meant for the reader.

Control tokens come as single characters from `CONTROL_CHARACTERS`, which no text can hold; the
marks of the format are written in the same way. So `<|channel|>` spelled out by the model is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from localllm.text.reasoning import ReasoningFormat
from localllm.text.string_automaton import ROOT, StringAutomaton

CONTROL_CHARACTERS = range(0xD800, 0xE000)
"""Surrogates: decoding UTF-8 never gives one."""
MAX_HEADER_CHARACTERS = 256
_CONTROLS = re.compile("[\ud800-\udfff]")

# Where in the answer a stream stands. At the first three nothing but spaces has come of the block.
BEGINNING, ANSWER_START, REASONING_START, ANSWER, REASONING, HEADER = range(6)


class ReasoningSplitter:
    """Splits text as it comes. A mark that may still be completed is held back, and given out if
    it is not; the spaces at the borders of a block are dropped.

    Several blocks of one kind are joined with an empty line.
    """

    def __init__(
        self,
        row: ReasoningFormat,
        opened: bool,
        written: Callable[[str], str] = str,
        *,
        within: bool = False,
    ) -> None:
        """`opened`: the prompt ended inside a block of reasoning. `written`: turns a mark into the
        characters in which it comes. within: the block has begun, with more than spaces."""
        headers = row.headers
        starts = headers.starts if headers else ()
        first = headers.first if headers else ()
        ends = (headers.end,) if headers else ()
        openings = () if headers else row.openings
        everywhere = (*starts, *(openings if row.anywhere else ()))
        answer_marks = (*row.answer_openings, *row.answer_closings)
        marks = {
            BEGINNING: (*openings, *row.closings, *answer_marks, *starts, *first),
            ANSWER_START: (*openings, *row.closings, *answer_marks, *starts),
            REASONING_START: (*row.closings, *openings, *starts, *row.answer_openings),
            ANSWER: (*everywhere, *row.answer_closings, *(row.closings if headers else ())),
            REASONING: (*row.closings, *starts, *row.answer_openings),
            HEADER: (*starts, *ends, *row.closings),
        }
        self._automata = {
            state: StringAutomaton([written(mark) for mark in texts])
            for state, texts in marks.items()
        }
        self._openings = _all(written, openings)
        self._answer_closings = _all(written, row.answer_closings)
        self._header_starts = _all(written, starts)
        self._first = _all(written, first)
        self._header_ends = _all(written, ends)
        self._reasoning_word = headers.reasoning_word if headers else ""
        if within:
            self._at = REASONING if opened else ANSWER
        else:
            self._at = REASONING_START if opened else BEGINNING
        self._state = ROOT
        self._held = ""
        self._spaces = ""  # held at the beginning of all, and at the end of reasoning
        self._header = ""
        self._header_is_text = False
        self._said: dict[int, bool] = {ANSWER: False, REASONING: False}
        self._joins = False
        self._out: tuple[list[str], list[str]] = ([], [])

    @property
    def n_held(self) -> int:
        """Characters that were fed and may still be part of a mark."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str]:
        """What can be told now: (for the reader, reasoning)."""
        for character in text:
            self._held += character
            self._advance(character)
        return self._taken()

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more text comes."""
        held, self._held, self._state = self._held, "", ROOT
        self._emit(held)
        if self._at == HEADER and self._header_is_text:
            self._header_was_text()
        if self._at == BEGINNING and self._spaces:
            self._say(ANSWER, self._spaces)
        self._spaces = ""
        return self._taken()

    def _taken(self) -> tuple[str, str]:
        answer, reasoning = ("".join(parts) for parts in self._out)
        self._out = ([], [])
        return answer, reasoning

    def _advance(self, character: str) -> None:
        """Takes one more character, the last of the held ones."""
        automaton = self._automata[self._at]
        self._state = automaton.step(self._state, character)
        n_matched = automaton.match[self._state]
        if n_matched:
            held, self._held, self._state = self._held, "", ROOT
            self._emit(held[:-n_matched])
            self._meet(held[-n_matched:])
            return
        n_safe = len(self._held) - automaton.depth[self._state]
        if n_safe:
            at, safe = self._at, self._held[:n_safe]
            self._held = self._held[n_safe:]
            self._emit(safe)
            if self._at != at:
                # Other marks count from here on: look at what is held once more.
                held, self._held, self._state = self._held, "", ROOT
                for again in held:
                    self._held += again
                    self._advance(again)

    def _meet(self, mark: str) -> None:
        """Goes where a mark leads."""
        if mark in self._header_ends:
            reasoning = self._reasoning_word in self._header.split()
            self._begin(REASONING_START if reasoning else ANSWER_START)
        elif mark in self._first:
            self._header, self._header_is_text = self._spaces + mark, True
            self._begin(HEADER)
        elif mark in self._header_starts:
            if self._at != HEADER:
                self._begin(HEADER)
                self._header, self._header_is_text = "", False
            self._header += " "
        elif mark in self._openings:
            self._begin(REASONING_START)
        elif mark in self._answer_closings:
            self._begin(ANSWER)
        else:
            self._begin(ANSWER_START)

    def _begin(self, at: int) -> None:
        self._at = at
        self._spaces = ""
        if at in (ANSWER_START, REASONING_START):
            self._joins = True

    def _emit(self, text: str) -> None:
        """Gives out text that holds no mark."""
        text = _CONTROLS.sub("", text)
        if not text:
            return
        if self._at == HEADER:
            self._header += text
            if len(self._header) > MAX_HEADER_CHARACTERS:
                self._header_was_text()
            return
        if self._at in (BEGINNING, ANSWER_START, REASONING_START):
            shown = text.lstrip()
            if self._at == BEGINNING:
                self._spaces += text[: len(text) - len(shown)]
            if not shown:
                return
            self._at = REASONING if self._at == REASONING_START else ANSWER
            text, self._spaces = self._spaces + shown, ""
        if self._at == REASONING:
            text = self._spaces + text
            shown = text.rstrip()
            self._spaces = text[len(shown) :]
            text = shown
        if text:
            self._say(self._at, text)

    def _header_was_text(self) -> None:
        header, self._header = self._header, ""
        self._at = BEGINNING if self._header_is_text else ANSWER_START
        self._emit(header)

    def _say(self, kind: int, text: str) -> None:
        if self._joins and self._said[kind]:
            text = "\n\n" + text
        self._joins = False
        self._said[kind] = True
        self._out[0 if kind == ANSWER else 1].append(text)


def _all(written: Callable[[str], str], marks: Iterable[str]) -> frozenset[str]:
    return frozenset(map(written, marks))
