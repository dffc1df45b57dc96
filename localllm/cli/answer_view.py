"""An answer on the screen while it comes: its text, its reasoning in a fold, a line of progress
while a long prompt is read."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localllm.cli import output, report
from localllm.cli.word_wrap import WordWrap

if TYPE_CHECKING:
    from localllm.remote_session import AnySession
    from localllm.session import Chunk, TokenLogprobs

#: How reasoning appears: a line for all of it, all of it, or not at all.
FOLD, SHOW, HIDE = "fold", "show", "hide"
_PATIENCE_S = 0.5  # a prompt that is read faster needs no progress
_REDRAW_S = 0.1
_TAIL = 400  # characters of reasoning that a line could ever show


@dataclass
class Shown:
    """What came of an answer, complete or not."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class AnswerView:
    """Shows one answer: text on stdout, all else on stderr, everything escaped.

    quiet: nothing is shown. fold_hint follows the line of a fold. Where output is plain, the
    reasoning and the answer are announced in words.
    """

    def __init__(
        self,
        session: AnySession,
        *,
        thinking: str = FOLD,
        quiet: bool = False,
        fold_hint: str = "",
    ) -> None:
        self._session, self._thinking = session, HIDE if quiet else thinking
        self._quiet, self._fold_hint = quiet, fold_hint
        self._line = output.ProgressLine()
        self._wrap = WordWrap(output.columns) if output.wraps_words() else None
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._tail = ""
        self._n_thoughts = 0
        self._began: float | None = None  # when reasoning did; None outside of it
        self.shown = Shown()

    def show(self, chunks: Iterator[Chunk]) -> Shown:
        """Prints the chunks as they come. What came is in `shown` also after an exception.

        Whatever ends it, the generator is closed: only then does no step run any more.
        """
        assert isinstance(chunks, Generator)
        waiting = _Waiting(self._session, self._line)
        try:
            with contextlib.closing(chunks), waiting:
                for chunk in chunks:
                    waiting.end()
                    self._add(chunk)
        finally:
            self._line.clear()
            self.shown.text = "".join(self._pieces)
            self.shown.reasoning = "".join(self._thoughts)
        self._end_reasoning()
        if not self._quiet:
            self._end()
        return self.shown

    def _end(self) -> None:
        shown = self.shown
        if shown.reasoning and not shown.text:
            if shown.finish_reason == "length":
                output.note("the tokens ran out while the model reasoned: there is no answer")
            elif shown.finish_reason != "cancelled":
                output.note("the model ended while it reasoned: there is no answer")
        elif not shown.text.endswith("\n"):
            output.emit("\n")

    def _add(self, chunk: Chunk) -> None:
        self.shown.finish_reason = chunk.finish_reason or self.shown.finish_reason
        self.shown.logprobs += chunk.logprobs
        if chunk.reasoning:
            self._thoughts.append(chunk.reasoning)
            self._n_thoughts += len(chunk.token_ids)
            self._reason(chunk.reasoning)
        if chunk.text:
            self._end_reasoning()
            self._pieces.append(chunk.text)
            if not self._quiet:
                text = output.escape(chunk.text)
                output.emit(self._wrap.feed(text) if self._wrap else text)

    def _reason(self, text: str) -> None:
        if self._began is None:
            self._began = time.perf_counter()
            if output.is_plain() and self._thinking != HIDE:
                output.say("thinking")
        if self._thinking == SHOW:
            output.whisper(output.dim(output.escape(text)))
        elif self._thinking == FOLD:
            self._tail = (self._tail + text)[-_TAIL:]
            self._line.draw(self._live_line())

    def _live_line(self) -> str:
        head = f"thinking… {self._n_thoughts:,} tokens  "
        room = output.columns() - 1 - len(head)
        tail = " ".join(self._tail.split())
        # Fitted from its end: the newest words are the ones to see.
        return head + output.fit(output.escape_line(tail)[::-1], max(room, 0))[::-1]

    def _end_reasoning(self) -> None:
        if self._began is None:
            return
        seconds, self._began = time.perf_counter() - self._began, None
        self._line.clear()
        if self._thinking == SHOW and not self._thoughts[-1].endswith("\n"):
            output.say("")
        if self._thinking != HIDE:
            tokens = report.count(self._n_thoughts, "token")
            line = f"thought for {seconds:.1f} s, {tokens}{self._fold_hint}"
            output.say(output.dim(line))
            if output.is_plain():
                output.say("answer:")


class _Waiting:
    """Draws how far a prompt is read, on a thread of its own: the caller waits for the engine."""

    def __init__(self, session: AnySession, line: output.ProgressLine) -> None:
        self._session, self._line = session, line
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _Waiting:
        if self._line.enabled:
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        """Takes the line away. Idempotent."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
            self._line.clear()

    def _draw(self) -> None:
        pause = _PATIENCE_S
        while not self._ended.wait(pause):
            done, total = self._session.progress_tokens
            if total > done:
                self._line.draw(f"reading the prompt: {done:,} of {total:,} tokens", force=True)
            pause = _REDRAW_S
