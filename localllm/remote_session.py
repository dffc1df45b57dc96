"""A session whose model a running server of the same user holds: nothing is loaded here.

The server gives what a session of its own version would, chunk by chunk; see
`server/routes/session.py`.
"""

from __future__ import annotations

import dataclasses
import datetime
import http.client
import json
import socket
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Union

from localllm import __version__
from localllm import errors as failures
from localllm.engine.exchange import Chunk, Stats, TokenLogprobs
from localllm.engine.kept_conversations import KeptAt, KeptConversations
from localllm.errors import CancelledError, LocalLLMError, UnsupportedError
from localllm.params import GenerateParams
from localllm.server import announced, client
from localllm.server.announced import Announced
from localllm.server.client import RefusedError, ServerGoneError
from localllm.session import Session, SessionInfo, clip, title_of
from localllm.store.answers import Answer, Fingerprint

AnySession = Union[Session, "RemoteSession"]
_ALIVE_S = 2.0
"""A server that says nothing for so long is not asked."""
_ERRORS: dict[str, type[LocalLLMError]] = {
    "context_length_exceeded": failures.ContextFullError,
    "chat_template_error": failures.ChatTemplateError,
    "invalid_value": failures.ArgumentError,
    "unsupported": failures.UnsupportedError,
    "queue_full": failures.QueueFullError,
    "out_of_memory": failures.OutOfMemoryError,
    "cancelled": failures.CancelledError,
}


class RemoteSession:
    """See `Session`. Use `find`."""

    def __init__(
        self, server: Announced, path: Path, beside: str, label: str, about: Mapping[str, Any]
    ) -> None:
        self.info = SessionInfo(**about["info"])
        self.kv_type = str(about["kv_type"])
        self.url = server.url
        self.stats = Stats()
        self.notes: tuple[str, ...] = ()
        self.is_lost = False
        self.answer: Answer | None = None
        self.conversation = ""
        self.may_store = True  # whether the server keeps what it computes
        self.kept: KeptConversations | None = None  # where it is noted whose pages are whose
        self._kept_at = KeptAt.of(about.get("kept_at"))
        self._server, self._label, self._about = server, label, about
        self._model = {"path": str(path), "beside": beside}
        self._n_kept = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # of the running answer
        self._cancelled = False

    @property
    def progress_tokens(self) -> tuple[int, int]:
        """How far a prompt is computed is not told."""
        return 0, 0

    @property
    def context_used(self) -> int:
        return self._n_kept

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
        go_on: bool = False,
    ) -> Iterator[Chunk]:
        """See `Session.chat`."""
        if any(message.get("images") for message in messages):
            raise UnsupportedError(
                "a running server looks at no pictures yet", "Use: localllm run --no-server"
            )
        body = {"messages": list(messages), "think": think, "go_on": go_on}
        yield from self._answer(body, params, title_of(messages), raw=False)

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        """See `Session.complete`."""
        yield from self._answer({"prompt": prompt}, params, clip(prompt), raw=True)

    def forget(self) -> None:
        self._n_kept = 0

    def cancel(self) -> None:
        """See `Session.cancel`."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)  # whoever reads it wakes up

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self, body: Mapping[str, Any], params: GenerateParams, title: str, *, raw: bool
    ) -> Iterator[Chunk]:
        self.answer, self.notes = None, ()
        self.stats = Stats(load_s=self.stats.load_s)
        asked = {**self._model, **body, "params": json.dumps(params.changed())}
        asked["store"] = self.may_store
        prompt: Mapping[str, Any] = {}
        given: list[Chunk] = []
        n_given = 0
        lines = self._lines(asked)
        try:
            for line in lines:
                if "prompt_ids" in line:
                    prompt = line
                    self.notes = tuple(line["notes"])
                    self.stats.prompt_tokens = len(line["prompt_ids"])
                    self._note(line["prompt_ids"])
                elif "error" in line:
                    raise _error(line["error"])
                elif "usage" in line:
                    self._count(line["usage"], line["timings"])
                    break
                elif "chunk" in line:
                    given.append(_chunk(line["chunk"]))
                    n_given += len(given[-1].token_ids)
                    # The last token was sampled, and not computed.
                    self._n_kept = self.stats.prompt_tokens + max(0, n_given - 1)
                    if given[-1].finish_reason is None:
                        yield given[-1]
        except CancelledError:
            if not self._cancelled:
                raise
            given.append(Chunk("", finish_reason="cancelled"))
        finally:
            lines.close()
            with self._lock:
                self._cancelled, self._socket = False, None
        if not given or given[-1].finish_reason is None:
            raise ServerGoneError(f"the server at {self.url} broke off its answer")
        self._keep(prompt, given, params, title, raw=raw)
        yield given[-1]

    def _lines(self, asked: Mapping[str, Any]) -> Generator[Mapping[str, Any], None, None]:
        """What the server says. Raises `CancelledError` after `cancel`."""
        try:
            with client.answering(
                self._server, "/localllm/answer", asked, connected=self._connected
            ) as answer:
                while line := answer.readline():
                    if line.startswith(b"{"):
                        yield json.loads(line)
        except RefusedError as e:
            raise _error({"code": e.code, "message": e.message}) from e
        except (OSError, ValueError, http.client.HTTPException, ServerGoneError) as e:
            if self._cancelled:
                raise CancelledError("the answer was stopped") from e
            raise ServerGoneError(f"the server at {self.url} broke off its answer: {e}") from e
        if self._cancelled:
            raise CancelledError("the answer was stopped")

    def _connected(self, connection: socket.socket) -> None:
        with self._lock:
            if self._cancelled:
                raise CancelledError("the answer was stopped")
            self._socket = connection

    def _count(self, usage: Mapping[str, int], timings: Mapping[str, float]) -> None:
        stats = self.stats
        stats.cached_tokens = usage["cached_tokens"]
        stats.computed_tokens = stats.prompt_tokens - stats.cached_tokens
        stats.generated_tokens = usage["generated_tokens"]
        stats.reasoning_tokens = usage["reasoning_tokens"]
        stats.prompt_s = stats.first_token_s = timings["queued_s"] + timings["prompt_s"]
        stats.decode_s = timings["decode_s"]

    def _note(self, tokens: Sequence[int]) -> None:
        if self.kept is not None and self.conversation and self._kept_at is not None:
            self.kept.note(self.conversation, self._kept_at, tokens)

    def _keep(
        self,
        prompt: Mapping[str, Any],
        given: list[Chunk],
        params: GenerateParams,
        title: str,
        *,
        raw: bool,
    ) -> None:
        """Makes the record of an answer."""
        if not prompt:
            return
        token_ids = tuple(token for chunk in given for token in chunk.token_ids)
        self._note([*prompt["prompt_ids"], *token_ids])
        about = self._about
        self.answer = Answer(
            fingerprint=Fingerprint(
                model_digest=about["digest"],
                engine=about["engine_version"],
                arithmetic=about["arithmetic"],
                kv_type=about["kv_type"],
                params=params.changed(),
                prompt_ids=tuple(prompt["prompt_ids"]),
            ),
            model=self._label,
            title=title,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            token_ids=token_ids,
            text="".join(chunk.text for chunk in given),
            reasoning="".join(chunk.reasoning for chunk in given),
            finish_reason=given[-1].finish_reason or "",
            opened=prompt["opened"],
            raw=raw,
        )


@dataclasses.dataclass(frozen=True)
class Sought:
    """The model that a session is wanted for. beside: the template that comes with it."""

    path: Path
    label: str
    beside: str
    kv_type: str


def find(folder: Path, sought: Sought) -> tuple[RemoteSession | None, str]:
    """A session of a running server that serves the model, loaded if need be; or None, and a line
    on why a server could not be used, if there is one."""
    note = ""
    for server in announced.found(folder):
        if server.version != __version__:
            note = f"the server at {server.url} is localllm {server.version}, not {__version__}"
            continue
        asked = {"path": str(sought.path.absolute()), "beside": sought.beside}
        try:
            client.ask(server, "/localllm/ps", timeout_s=_ALIVE_S)
            about = client.ask(server, "/localllm/session", asked, timeout_s=None)
        except RefusedError as e:
            if e.status != 404:
                note = f"the server at {server.url} cannot serve it: {e.message}"
            continue
        except (ServerGoneError, ValueError):
            continue
        session = RemoteSession(server, sought.path.absolute(), sought.beside, sought.label, about)
        if session.kv_type == sought.kv_type:
            return session, ""
    return None, note


def _chunk(document: Mapping[str, Any]) -> Chunk:
    logprobs = tuple(
        TokenLogprobs(
            each["token"], each["text"], each["value"], tuple((t, v) for t, v in each["top"])
        )
        for each in document["logprobs"]
    )
    return Chunk(
        document["text"],
        tuple(document["token_ids"]),
        document["finish_reason"],
        document["reasoning"],
        logprobs,
    )


def _error(document: Mapping[str, Any]) -> LocalLLMError:
    kind = _ERRORS.get(str(document["code"]), LocalLLMError)
    return kind(str(document["message"]), document.get("hint"))
