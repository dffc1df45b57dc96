"""Token ids of an answer to what a front end shows: the answer and, apart from it, reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from localllm.text.reasoning import ReasoningFormat
from localllm.text.reasoning_split import CONTROL_CHARACTERS, ReasoningSplitter
from localllm.text.special_split import SpecialSplitter
from localllm.text.stop import StopStrings
from localllm.text.stream import StreamDecoder
from localllm.text.tokenizer import Tokenizer


class Delta(NamedTuple):
    """What one token adds."""

    text: str = ""
    """To the answer."""
    reasoning: str = ""
    stopped: bool = False
    """Whether a stop string was met: the answer is complete, nothing more comes."""


class AnswerStream:
    """Turns the tokens of one answer into text as they come.

    Nothing is held back but what may still become a character, a mark of the reasoning format, a
    stop string, or the spaces around a block of reasoning. Stop strings count in the answer only.
    Control tokens are not shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reasoning: ReasoningFormat | None = None,
        opened: bool = False,
        within: bool = False,
        stop: Sequence[str] = (),
    ) -> None:
        """`opened`: the prompt ended inside a block of reasoning (`Prompt.opens_reasoning`).
        within: the prompt ended inside the text of this answer (`Prompt.goes_on`).
        Raises `ArgumentError` for stop strings out of their limits."""
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, within=within)
        self.n_read = 0
        """Characters that the tokens have completed."""
        self._stops = StopStrings(stop)
        self._controls: dict[int, str] = {}
        self._splitter: ReasoningSplitter | None = None
        if reasoning is not None:
            marks = _ControlMarks(tokenizer, reasoning)
            self._controls = marks.characters
            self._splitter = ReasoningSplitter(reasoning, opened, marks.written, within=within)

    def feed(self, token_id: int) -> Delta:
        """What a token completes; often nothing. Raises `ArgumentError` for an id outside the
        vocabulary."""
        control = self._controls.get(token_id)
        if control is None:
            return self._shown(self._decoder.feed(token_id))
        # A mark cannot be inside a character.
        return self._shown(self._decoder.finish() + control)

    def finish(self) -> Delta:
        """What was held back: no more tokens come."""
        last = self._shown(self._decoder.finish())
        if last.stopped:
            return last
        text, reasoning = self._splitter.finish() if self._splitter else ("", "")
        text = self._stops.finish(text)
        return Delta(last.text + text, last.reasoning + reasoning, self._stops.hit)

    @property
    def n_settled(self) -> int:
        """The first so many of them stay, whatever comes. Once a stop string was met: those in
        front of it."""
        held = self._stops.n_cut if self._stops.hit else self._stops.n_held
        return self.n_read - held - (self._splitter.n_held if self._splitter else 0)

    def _shown(self, text: str) -> Delta:
        reasoning = ""
        if self._stops.hit:
            return Delta(stopped=True)
        self.n_read += len(text)
        if self._splitter is not None:
            text, reasoning = self._splitter.feed(text)
        text, stopped = self._stops.feed(text)
        return Delta(text, reasoning, stopped)


class _ControlMarks:
    """How the marks of a format come in a vocabulary's tokens: see `reasoning_split`."""

    def __init__(self, tokenizer: Tokenizer, row: ReasoningFormat) -> None:
        headers = row.headers
        marks = [*row.openings, *row.closings, *row.answer_openings, *row.answer_closings]
        marks += [*headers.starts, headers.end, *headers.first] if headers else []
        controls = {
            text: token_id
            for text, token_id in tokenizer.special_texts().items()
            if tokenizer.is_control(token_id) and any(text in mark for mark in marks)
        }
        self.characters = {
            token_id: chr(code)
            for token_id, code in zip(controls.values(), CONTROL_CHARACTERS, strict=False)
        }
        self._splitter = SpecialSplitter(controls)

    def written(self, mark: str) -> str:
        """A mark with each control token in it as its character."""
        pieces = self._splitter.pieces(mark)
        return "".join(self.characters[p] if isinstance(p, int) else p for p in pieces)
