"""The prompt of a command line: its words, what comes on stdin, or both."""

from __future__ import annotations

import select
import sys

from localllm.cli import output
from localllm.errors import ArgumentError

MAX_STDIN_BYTES = 16 << 20  # beyond the context of any model here, and still quick to read
_STDIN_PATIENCE_S = 1.0


def from_command_line(words: tuple[str, ...]) -> str:
    """The words, an empty line, and the text on stdin unless that is a terminal. Raises
    `ArgumentError` if this gives nothing."""
    pieces = [" ".join(words)] if words else []
    for piece in pieces:
        require_text("the prompt", piece)
    if not is_terminal(sys.stdin):
        pieces.append(_from_stdin(optional=bool(words)))
    text = "\n\n".join(piece for piece in pieces if piece)
    if text.strip():
        return text
    raise ArgumentError(
        "there is no prompt" if not pieces else "the prompt is empty",
        "localllm run smollm2:135m 'Why is the sky blue?'   (or send the prompt to stdin)",
    )


def is_terminal(stream: object) -> bool:
    """Whether a person is at the other end. A stream that is closed counts as one without text."""
    isatty = getattr(stream, "isatty", None)
    return isatty is None or bool(isatty())


def require_text(name: str, text: str) -> None:
    """Python keeps argument bytes that are no UTF-8 as lone surrogates: refuse them."""
    for position, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise ArgumentError(f"{name} is not valid text: a stray byte at character {position}")


def decode(data: bytes) -> str:
    """Text from stdin. Raises `ArgumentError` if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise ArgumentError(
            f"the prompt on stdin is not UTF-8: byte 0x{data[e.start]:02x} at position {e.start}",
            "Convert it first, as with: iconv -f latin1 -t utf-8",
        ) from e


def too_long() -> ArgumentError:
    """The error for more than MAX_STDIN_BYTES."""
    return ArgumentError(
        f"the prompt on stdin is longer than {MAX_STDIN_BYTES:,} bytes",
        "No model here reads that much at once: send a part of it.",
    )


def _from_stdin(*, optional: bool) -> str:
    if optional and sys.platform != "win32":
        # A pipe that nobody writes to or closes would look like a hang.
        ready, _, _ = select.select([sys.stdin], [], [], _STDIN_PATIENCE_S)
        if not ready:
            output.say("note: waiting for the rest of the prompt on stdin (none: < /dev/null)")
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise too_long()
    return decode(data).removesuffix("\n")
