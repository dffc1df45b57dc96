"""Asking a session: by the model's template, or plainly where it has none; and keeping the record
of what it answered."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from localllm import paths
from localllm.cli import opening, output
from localllm.errors import ArgumentError, LocalLLMError, UnsupportedError
from localllm.params import GenerateParams
from localllm.store import answers

if TYPE_CHECKING:
    from localllm.cli.finding import Found
    from localllm.remote_session import AnySession
    from localllm.session import Chunk
    from localllm.store.settings import Settings


def parameters(session: AnySession, given: Mapping[str, Any]) -> GenerateParams:
    """The parameters that were given; for the others what the model's file recommends, or the
    defaults. Without a seed it is a new one."""
    return GenerateParams(**{"seed": secrets.randbits(32), **session.info.recommended, **given})


def beginning(carried: Settings, system: str | None) -> list[dict[str, Any]]:
    """What comes before a conversation: the instructions that were given, else the model's own, and
    the messages that came with the model."""
    if system is None:
        system = carried.system or None
    begin = [] if system is None else [("system", system)]
    return [{"role": role, "content": text} for role, text in (*begin, *carried.messages)]


class Asker:
    """Asks one session. raw: the text of a question is continued as it is; becomes True when the
    model turns out to have no template."""

    def __init__(self, found: Found, session: AnySession, *, raw: bool) -> None:
        self.found, self.session, self.raw = found, session, raw

    def ask(
        self, messages: list[dict[str, Any]], params: GenerateParams, think: bool | str | None
    ) -> Iterator[Chunk]:
        """Answers the last message. Raises the errors of `Session.chat`, and `ArgumentError` for
        a system message that no template could carry."""
        question = messages[-1]
        if not self.raw and not opening.is_base(self.found):
            started = False
            try:
                for chunk in (chunks := self.session.chat(messages, params, think=think)):
                    started = True
                    yield chunk
                return
            except UnsupportedError as e:  # no template, and none that would fit
                if started or "images" in question or messages[0]["role"] == "system":
                    raise
                output.note(e.message)
            finally:
                assert isinstance(chunks, Generator)
                chunks.close()
        if messages[0]["role"] == "system":
            raise ArgumentError(
                f"--system needs a chat template, and {self.found.label} is a base model "
                "without one",
                "Write the instructions into the prompt, or leave them out with --raw.",
            )
        if not self.raw:
            self.raw = True
            output.note(f"{self.found.label} is a base model: it continues the prompt (as --raw)")
        yield from self.session.complete(question["content"], params)


class Recorder:
    """Keeps the record of every answer, and how fast it came, unless that is turned off."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled and answers.environment_allows()

    def save(self, found: Found, session: AnySession) -> str | None:
        """The id of the session's last answer if its record was written. A disk that refuses it
        gives a note, once: the answer itself is there."""
        if not self._enabled or session.answer is None or not session.answer.token_ids:
            return None  # what was stopped before its first token cannot be compared
        try:
            answers.Answers(paths.current().answers).save(session.answer)
        except LocalLLMError as e:
            self._enabled = False
            output.note(f"the answers have no records for replay: {e.message}")
            return None
        from localllm.session import Session

        if isinstance(session, Session):  # a server may have had others to answer
            from localllm.cli import speed_notes  # once the answer is there

            speed_notes.of_answer(found, session)
        return session.answer.id
