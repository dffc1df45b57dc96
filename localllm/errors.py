"""Every error that a user may meet. Each says what failed, the value and the limit, and may carry
a hint: one sentence on what to do about it."""

from __future__ import annotations


class LocalLLMError(Exception):
    """The base of all errors of this program.

    `exit_code` is what a command returns when this error ends it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class FileError(LocalLLMError):
    """The system refused a file: not there, not readable, a full disk."""


class FormatError(LocalLLMError):
    """A file breaks the rules of its format."""


class DownloadError(LocalLLMError):
    """A file could not be fetched."""


class UnsupportedError(LocalLLMError):
    """A valid request or file that this build cannot run."""


class ArgumentError(LocalLLMError):
    """A value is out of its range or of the wrong kind."""

    exit_code = 2


class ContextFullError(ArgumentError):
    """A prompt has more tokens than the context holds. n_tokens, n_ctx: how many, if known."""

    def __init__(
        self, message: str, hint: str | None = None, *, n_tokens: int = 0, n_ctx: int = 0
    ) -> None:
        super().__init__(message, hint)
        self.n_tokens, self.n_ctx = n_tokens, n_ctx

    @classmethod
    def of(cls, n_tokens: int, n_ctx: int, hint: str | None = None) -> ContextFullError:
        message = f"the prompt has {n_tokens} tokens and the context holds {n_ctx}"
        return cls(message, hint, n_tokens=n_tokens, n_ctx=n_ctx)


class ChatTemplateError(ArgumentError):
    """A chat template refused the messages, broke off or asked for too much."""


class OutOfMemoryError(LocalLLMError):
    """An allocation was refused."""


class QueueFullError(LocalLLMError):
    """Too many requests wait already. `retry_after_s`: when it is worth asking again."""

    def __init__(self, message: str, hint: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class CancelledError(LocalLLMError):
    """The work was stopped on request."""

    exit_code = 130


#: The exception of each `llm_status` of native/include/localllm.h but LLM_OK.
BY_STATUS: dict[int, type[LocalLLMError]] = {
    1: FileError,
    2: FormatError,
    3: UnsupportedError,
    4: ArgumentError,
    5: OutOfMemoryError,
    6: CancelledError,
}


def error_from_status(status: int, message: str, hint: str | None = None) -> LocalLLMError:
    """The exception for a native status (not LLM_OK) and the message that came with it."""
    if status not in BY_STATUS:
        return LocalLLMError(f"native status {status}: {message}", hint)
    return BY_STATUS[status](message, hint)
