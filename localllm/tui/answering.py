"""One answer on its way: a worker thread reads it, the UI takes what has come since it last
looked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.errors import LocalLLMError
from localllm.params import GenerateParams
from localllm.tui.opening import AnySession


@dataclass(frozen=True)
class Piece:
    """What came between two looks. finish_reason: set with the last piece, "error" where an error
    ended the answer."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None


class Answering:
    """`run` belongs to a thread of its own; everything else to the UI."""

    def __init__(
        self,
        session: AnySession,
        messages: Sequence[Mapping[str, Any]],
        params: GenerateParams,
        think: bool | str | None,
        *,
        go_on: bool = False,
    ) -> None:
        self.session, self.messages = session, list(messages)
        self.params, self.think, self._go_on = params, think, go_on
        self.error: LocalLLMError | None = None
        self.text = self.reasoning = ""  # all that was taken
        self.started = time.monotonic()
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._finish: str | None = None
        self._stopped = False

    def run(self) -> None:
        """Reads the answer to its end. Raises nothing: `error` says what went wrong."""
        finish = "error"
        try:
            finish = self._read(
                self.session.chat(self.messages, self.params, think=self.think, go_on=self._go_on)
            )
        except LocalLLMError as e:
            self.error = e
        except Exception as e:  # whatever it is, the conversation goes on
            self.error = LocalLLMError(
                f"internal error: {type(e).__name__}: {e}",
                "This is a fault in localllm. The conversation is kept.",
            )
        with self._lock:
            self._finish = finish

    def _read(self, chunks: Iterator[Any]) -> str:
        for chunk in chunks:
            with self._lock:
                if chunk.text:
                    self._texts.append(chunk.text)
                if chunk.reasoning:
                    self._thoughts.append(chunk.reasoning)
            if chunk.finish_reason is not None:
                return str(chunk.finish_reason)
        return "stop"

    def stop(self) -> None:
        """Ends the answer: what is there stays."""
        self._stopped = True
        with self._lock:
            if self._finish is None:  # else the session would keep it for the next answer
                self.session.cancel()

    @property
    def stopping(self) -> bool:
        """Whether the user asked for its end."""
        return self._stopped

    def take(self) -> Piece:
        """What has come since the last time."""
        with self._lock:
            text, reasoning = "".join(self._texts), "".join(self._thoughts)
            self._texts.clear()
            self._thoughts.clear()
            finish = self._finish
        self.text += text
        self.reasoning += reasoning
        return Piece(text, reasoning, finish)
