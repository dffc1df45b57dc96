"""A conversation with a model: the messages, the settings, and what is asked of the session."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localllm.cli import opening, output, report
from localllm.cli.answer_view import FOLD, AnswerView, Shown
from localllm.cli.asking import Asker, Recorder, beginning, parameters
from localllm.cli.finding import Found, hints
from localllm.cli.interrupt import Interrupts
from localllm.cli.repl.terminal import no_echo
from localllm.errors import ArgumentError, ContextFullError, LocalLLMError
from localllm.params import GenerateParams
from localllm.store.settings import NOTHING_SET
from localllm.store.settings import Settings as Carried

if TYPE_CHECKING:
    from localllm.cli.loading_options import Opening
    from localllm.cli.repl.saved import Saved
    from localllm.cli.run import Wishes
    from localllm.remote_session import AnySession

#: {"role": "user" or "assistant", "content"}, and where there are any "reasoning_content",
#: "images" (paths), "id" (of the record) and "finish_reason".
Message = dict[str, Any]
_CONTEXT_HINT = (
    "/clear begins a new conversation (/save NAME keeps this one), /regenerate tries for a shorter "
    "last answer, and localllm run --ctx N has more room, if the model was trained for it."
)
_SENT = ("role", "content", "reasoning_content", "images")


@dataclass
class Totals:
    """Sums over the answers of a conversation."""

    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0


@dataclass
class Settings:
    """What /set and /think change. sampling holds only parameters that were given. own_system:
    whether the model's own instructions count where none were given."""

    sampling: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    own_system: bool = True
    think: bool | str | None = None
    thinking: str = FOLD
    verbose: bool = False


class NoModelError(LocalLLMError):
    """No model is open: another one could not be loaded, and the old one did not come back."""


class Chat:
    """One conversation over one session, which another model may replace."""

    def __init__(self, found: Found, session: AnySession, wishes: Wishes) -> None:
        self.found = found
        self.opening: Opening = wishes.opening
        self._wishes = wishes
        self._session: AnySession | None = session
        self._why_none = ""  # why there is no session
        self.settings = Settings(
            sampling=dict(wishes.sampling),
            system=wishes.system,
            think=wishes.think,
            thinking=wishes.thinking,
            verbose=wishes.verbose,
        )
        self.messages: list[Message] = []
        self.totals = Totals()
        self._asker = Asker(found, session, raw=wishes.raw)
        self._recorder = Recorder(enabled=wishes.record)
        self._told: set[str] = set()

    @property
    def session(self) -> AnySession:
        """The session of the model that is open. Raises `NoModelError`."""
        if self._session is None:
            raise NoModelError(
                f"no model is open: {self._why_none}",
                "/load NAME opens one. The conversation is kept.",
            )
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The parameters that the open model's file recommends."""
        return self._session.info.recommended if self._session else {}

    @property
    def carried(self) -> Carried:
        """What came with the model beside its file."""
        return self.found.settings

    @property
    def system(self) -> str | None:
        """The instructions that hold."""
        own = self.carried.system if self.settings.own_system else ""
        return own or None if self.settings.system is None else self.settings.system

    @property
    def last_reasoning(self) -> str:
        """The reasoning of the newest answer; empty if it has none."""
        return str(self.messages[-1].get("reasoning_content", "")) if self.messages else ""

    def send(self, message: Message) -> bool:
        """Asks and shows the answer; both are then part of the conversation. Neither is after an
        error, or after a stop (False) before anything came."""
        return self._answer([*self.messages, message], self.settings.sampling)

    def regenerate(self, seed: int | None) -> None:
        """Answers the last question again, with a new seed unless one is given. After an error the
        old answer is still there."""
        if not self.messages:
            raise ArgumentError("there is no question to answer again", "Ask something first.")
        seed = secrets.randbits(32) if seed is None else seed
        last = self.messages[-1]["role"]
        asked = self.messages[:-1] if last == "assistant" else self.messages
        self._answer(asked, {**self.settings.sampling, "seed": seed})

    def clear(self) -> None:
        """Forgets the messages, and what the engine keeps of them."""
        self.messages = []
        self.totals = Totals()
        if self._session is not None:
            self._session.forget()

    def replace(self, saved: Saved) -> None:
        """Goes on with another conversation and its settings; what the command line asked for
        holds nevertheless."""
        self.clear()
        self.messages = saved.messages
        wishes, settings = self._wishes, self.settings
        settings.sampling = {**saved.params, **wishes.sampling}
        settings.system = saved.system if wishes.system is None else wishes.system
        settings.think = saved.think if wishes.think is None else wishes.think

    def switch(self, name: str) -> None:
        """Goes on with another model. If that cannot be loaded, or Ctrl-C stops it, the old one is
        loaded again; where that fails too, no model is open."""
        found = opening.find(name)
        self._why_none = f"{found.label} was not loaded"
        self.close()  # both at once may not fit into the memory
        try:
            self._use(found, raw=False)
        except (Exception, KeyboardInterrupt) as e:
            self._come_back(found, e)
            raise

    def _come_back(self, failed: Found, why: BaseException) -> None:
        """Loads the old model again, after the error of a new one. Raises a `NoModelError` with
        both reasons."""
        old = self.found
        reason = self._why_none = _reason(why)
        no_model = "No model is open: /load NAME opens one. The conversation is kept."
        if old.path == failed.path:
            raise NoModelError(reason, no_model) from why
        try:
            self._use(old, raw=self._asker.raw)
        except (Exception, KeyboardInterrupt) as e:
            also = f"{old.label} did not come back: {_reason(e)}"
            self._why_none = f"{reason}; {also}"
            raise NoModelError(reason, f"{also}. {no_model}") from why

    def _use(self, found: Found, *, raw: bool) -> None:
        opened = dataclasses.replace(self.opening, raw=raw)
        self._session = opening.load(found, opened, ends=False)
        self.found = found
        self._asker = Asker(found, self._session, raw=raw)

    def close(self) -> None:
        """Ends the session, if one is open."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _answer(self, asked: list[Message], sampling: dict[str, Any]) -> bool:
        params = parameters(self.session, {**self.carried.sampling, **sampling})
        view = AnswerView(
            self.session,
            thinking=self.settings.thinking,
            fold_hint="" if output.is_plain() else " (/think show)",
        )
        with hints(self.found), no_echo(), Interrupts(self.session.cancel, ends=False):
            try:
                answer = self._asker.ask(self._to_send(asked), params, self.settings.think)
                shown = view.show(answer)
            except ContextFullError as e:
                if len(asked) > 1:
                    e.hint = _CONTEXT_HINT
                raise
        identity = self._recorder.save(self.found, self.session)
        nothing = shown.finish_reason == "cancelled" and not (shown.text or shown.reasoning)
        if not nothing:
            message: Message = {"role": "assistant", "content": shown.text}
            if shown.reasoning:
                message["reasoning_content"] = shown.reasoning
            if identity:
                message["id"] = identity
            self.messages = [*asked, {**message, "finish_reason": shown.finish_reason}]
        self._count()
        self._tell(shown, params, identity)
        return not nothing

    def _to_send(self, asked: list[Message]) -> list[Message]:
        carried = NOTHING_SET if self._asker.raw else self.carried
        if not self.settings.own_system:
            carried = dataclasses.replace(carried, system="")
        begin = beginning(carried, self.settings.system)
        return [*begin, *({key: m[key] for key in _SENT if key in m} for m in asked)]

    def _count(self) -> None:
        stats, totals = self.session.stats, self.totals
        totals.answers += 1
        totals.prompt_tokens += stats.prompt_tokens
        totals.cached_tokens += stats.cached_tokens
        totals.generated_tokens += stats.generated_tokens
        totals.reasoning_tokens += stats.reasoning_tokens
        totals.seconds += stats.prompt_s + stats.decode_s

    def _tell(self, shown: Shown, params: GenerateParams, identity: str | None) -> None:
        """What is said after an answer: how it ended, notes that are new, the footer."""
        info = self.session.info
        if shown.finish_reason == "cancelled":
            some = shown.text or shown.reasoning
            kept = "what is there stays in the conversation" if some else "before anything came"
            output.note(f"stopped, {kept}")
        elif shown.finish_reason == "length" and params.max_tokens is None:
            output.note(
                f"the context of {info.n_ctx:,} tokens is full: /clear begins anew; "
                "localllm run --ctx N has more room, if the model was trained for it"
            )
        for note in self.session.notes:
            if note not in self._told:
                self._told.add(note)
                output.note(note)
        output.say(output.dim(report.footer(self.session.stats)))
        if self.settings.verbose:
            facts = report.facts(
                self.found, self.session, params, self.opening.kv_type, shown.finish_reason
            )
            output.say(report.verbose_text(facts))
            if identity is not None:
                output.say(f"{'replay with':12} localllm replay {identity}")


def _reason(error: BaseException) -> str:
    if isinstance(error, LocalLLMError):
        return error.message
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
