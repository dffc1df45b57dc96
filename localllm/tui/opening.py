"""What the UI asks of whoever opens its models: a name goes in, a session comes out.

`localllm.cli.chat` gives an `Opener`; the UI knows neither files nor servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from localllm.params import GenerateParams
    from localllm.session import Chunk, SessionInfo, Stats

Message = Mapping[str, Any]  # {"role", "content"}, and "images" where the model takes them


class AnySession(Protocol):
    """The public surface of `localllm.session.Session` that a conversation needs.

    `info.n_ctx` is 0 where nobody says how much a server's context holds; so are the bytes.
    One answer at a time; `cancel` comes from any thread, everything else from one.
    """

    info: SessionInfo
    stats: Stats  # counts grow while an answer runs
    notes: tuple[str, ...]  # on the last answer, plain lines
    conversation: str
    """The id of the conversation that answers from now on belong to, so that what is kept of them
    can be deleted with it; "" before it is set."""

    @property
    def context_used(self) -> int:
        """Tokens of context that the last answer left in use."""

    @property
    def is_lost(self) -> bool:
        """Whether its file was cut short or written over while it was in use: it answers no more,
        and the model has to be opened again. Never with a server, which sees to that itself."""

    @property
    def progress_tokens(self) -> tuple[int, int]:
        """Tokens of the running prompt that are computed, and that are to be; 0, 0: not told."""

    def chat(
        self,
        messages: Sequence[Message],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
        go_on: bool = False,
    ) -> Iterator[Chunk]:
        """Answers the last message. go_on: that is an answer, and its rest is wanted. Blocks: for a
        worker thread. Raises `LocalLLMError`s; the chunks that came before stay valid."""

    def cancel(self) -> None:
        """Ends the running answer, or the next one, with finish_reason "cancelled"."""

    def forget(self) -> None:
        """Drops what is kept: the next prompt is computed from its beginning."""

    def close(self) -> None:
        """Ends a running answer and frees the memory. Twice is no error."""


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded. n_ctx 0: the model's own, or what fits."""

    n_ctx: int = 0
    kv_type: str = "f16"  # or "q8_0"


@dataclass(frozen=True)
class Described:
    """What is known of a model before it is loaded."""

    name: str  # opens it again
    label: str  # for people; a foreign text, to be escaped
    system: str = ""  # instructions that come with it
    messages: tuple[Message, ...] = ()  # what comes with it before every conversation
    sampling: Mapping[str, Any] = field(default_factory=dict)  # parameters that come with it
    file_bytes: int = 0  # 0: unknown


class Opener(Protocol):
    """Every method blocks, and belongs into a worker thread; several may run at once. All raise
    `LocalLLMError`s."""

    is_local: bool
    """Models are files of this machine: there are some to pull and to delete. False with --url."""

    def default(self) -> str | None:
        """The model to begin with: the one that was asked for, or the last used; None: to be
        chosen."""

    def names(self) -> Sequence[str]:
        """The models that can be opened, the likeliest first."""

    def describe(self, name: str) -> Described:
        """What is known of a model: quick, and without loading it."""

    def text_of(self, name: str, what: str) -> str:
        """A text that a model has along, exactly: one of `slash.OF_MODEL`. Raises `ArgumentError`
        where there is none."""

    def open(
        self,
        name: str,
        options: LoadOptions,
        *,
        progress: Callable[[float], None],
        notice: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> AnySession:
        """Loads a model that is here. progress is called with 0.0 .. 1.0 and notice with plain
        lines on what was chosen, from the calling thread; `CancelledError` soon after
        `cancelled` says True."""

    def forget_conversation(self, conversation: str) -> int:
        """Deletes from the disk the keys and values that were kept for a conversation, and that no
        other one needs; returns the bytes freed. No error if there are none, or if they were
        deleted before. What is asked in it later is computed anew."""

    def close(self) -> None:
        """Closes every session that was opened here."""


@dataclass(frozen=True)
class Beginning:
    """What the command line asks of new conversations. sampling: the parameters that were given;
    system None: the model's own instructions."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    think: bool | str | None = None
    options: LoadOptions = LoadOptions()
