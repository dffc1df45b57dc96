"""One question to two models. Nothing here knows Textual."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil

from localllm.errors import CancelledError, LocalLLMError
from localllm.params import GenerateParams
from localllm.session import Stats
from localllm.tui.answering import Answering
from localllm.tui.conversations.kinds import Message as Question
from localllm.tui.opening import AnySession, Described, LoadOptions, Message, Opener

WAITING, LOADING, ANSWERING, DONE, STOPPED, FAILED = (
    "waiting", "loading", "answering", "done", "stopped", "failed",
)  # fmt: skip
#: What a model takes beside its file: a context, buffers, the tokenizer.
_BESIDE_SHARE, _BESIDE_BYTES = 0.25, 500_000_000

Asked = tuple[Sequence[Message], GenerateParams, "bool | str | None"]
#: (question, session, what is known of its model): the messages, parameters and reasoning to ask.
Prepare = Callable[[Question, AnySession, Described], Asked]


class Side:
    """One model's part. `run` belongs to a thread; the rest to the UI."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state, self.share = WAITING, 0.0
        self.answering: Answering | None = None
        self.error: LocalLLMError | None = None
        self.stats = Stats()
        self.finish_reason = ""
        self._stopped = threading.Event()

    def run(
        self, opener: Opener, options: LoadOptions, question: Question, prepare: Prepare
    ) -> None:
        """Opens the model, reads its answer, closes it. Raises nothing."""
        session: AnySession | None = None
        try:
            if self._stopped.is_set():
                raise CancelledError("stopped before it began")
            self.state = LOADING
            described = opener.describe(self.name)
            session = opener.open(
                self.name,
                options,
                progress=self._loaded,
                notice=lambda text: None,
                cancelled=self._stopped.is_set,
            )
            answering = Answering(session, *prepare(question, session, described))
            self.answering = answering
            self.state = ANSWERING
            if self._stopped.is_set():
                answering.stop()
            answering.run()
            self.stats = replace(session.stats)
            self.error = answering.error
            self.state = FAILED if answering.error else STOPPED if self._stopped.is_set() else DONE
        except CancelledError:
            self.state = STOPPED
        except LocalLLMError as e:
            self.error, self.state = e, FAILED
        except Exception as e:  # whatever it is, it must reach the screen
            self.error = LocalLLMError(f"internal error: {type(e).__name__}: {e}")
            self.state = FAILED
        finally:
            if session is not None:
                self._close(session)

    def _close(self, session: AnySession) -> None:
        try:
            session.close()
        except LocalLLMError as e:
            self.error = self.error or e

    def _loaded(self, share: float) -> None:
        self.share = share

    def stop(self) -> None:
        """Ends it soon; what has come stays."""
        self._stopped.set()
        if self.answering is not None:
            self.answering.stop()

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, STOPPED, FAILED)

    @property
    def words(self) -> tuple[str, str]:
        """Text and reasoning, as far as they were taken."""
        answering = self.answering
        return (answering.text, answering.reasoning) if answering is not None else ("", "")

    @property
    def ended_by(self) -> str:
        """Why the answer ended, as a finish_reason; "cancelled" also where it has not yet."""
        if self.finish_reason:
            return self.finish_reason
        return {DONE: "stop", FAILED: "error"}.get(self.state, "cancelled")


class Comparison:
    """Both answers at once where the memory has room for both models, else one after the other."""

    def __init__(
        self, opener: Opener, names: tuple[str, str], question: Question, prepare: Prepare,
        options: LoadOptions,
    ) -> None:  # fmt: skip
        self.sides = (Side(names[0]), Side(names[1]))
        self.question = question
        self.together: bool | None = None  # None: not decided yet
        self._opener, self._prepare, self._options = opener, prepare, options
        self._thread = threading.Thread(target=self._run, name="compare", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        self.together = room_for_both(self._opener, [side.name for side in self.sides])
        if not self.together:
            for side in self.sides:
                self._ask(side)
            return
        second = threading.Thread(
            target=self._ask, args=(self.sides[1],), name="compare 2", daemon=True
        )
        second.start()
        self._ask(self.sides[0])
        second.join()

    def _ask(self, side: Side) -> None:
        side.run(self._opener, self._options, self.question, self._prepare)

    @property
    def is_over(self) -> bool:
        return all(side.is_over for side in self.sides)

    def stop(self) -> None:
        for side in self.sides:
            side.stop()

    def join(self, wait_s: float | None = None) -> None:
        self._thread.join(wait_s)


def room_for_both(
    opener: Opener, names: Sequence[str], free_bytes: Callable[[], int] | None = None
) -> bool:
    """Whether two models have room in the free memory. Those of a server are its business, and one
    model is there once."""
    if not opener.is_local:
        return True
    needed = 0.0
    for name in dict.fromkeys(names):
        try:
            n_bytes = opener.describe(name).file_bytes
        except LocalLLMError:
            continue  # the load says what is wrong
        if not n_bytes:
            return False
        needed += n_bytes * (1 + _BESIDE_SHARE) + _BESIDE_BYTES
    free = free_bytes() if free_bytes is not None else psutil.virtual_memory().available
    return needed <= free
