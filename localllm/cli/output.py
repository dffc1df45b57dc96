"""What reaches the terminal: escaped text, error texts, sizes, the one progress line.

Text that this program did not write is escaped (see `localllm.plain_text`) whether or not the
output is a terminal, because it may reach one later; `--json` gives the exact text. New lines and
tabs of model output stay as they are.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from localllm.errors import FileError, LocalLLMError
from localllm.plain_text import cells_of as cells_of
from localllm.plain_text import count_text as count_text
from localllm.plain_text import duration_text as duration_text
from localllm.plain_text import escape as escape
from localllm.plain_text import escape_line as escape_line
from localllm.plain_text import fit as fit
from localllm.plain_text import size_text as size_text

_CLEAR_LINE = "\r\x1b[K"
_REDRAW_S = 0.1
LONG_WAIT_S = 2.5  # what is waited for so long is said where there is no screen


_asked_plain = False
_wraps_words = True


class OutputError(FileError):
    """stdout takes no more: there is no way to go on."""


class ReaderGone(OutputError):
    """The other end of the pipe behind stdout was closed, as by `head`."""

    exit_code = 141


def print_error(error: LocalLLMError) -> None:
    """The one form of every error: `error: ...`, an empty line, `hint: ...`."""
    say(styled("error:", "31;1") + " " + escape(error.message))
    if error.hint:
        say("")
        say(styled("hint:", "1") + " " + escape(error.hint))


def say(line: str) -> None:
    """A line for the user, on stderr; on a screen its words stay whole. Nothing happens if stderr
    is closed."""
    whisper(_wrapped(line, sys.stderr) + "\n")


def tell(text: str) -> None:
    """Writes what a user asked to be told to stdout; on a screen words stay whole. Raises as
    `emit`."""
    emit(_wrapped(text, sys.stdout))


def whisper(text: str) -> None:
    """Writes to stderr at once, as `emit` does to stdout; a stderr that is closed is no error."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # nobody listens: there is no one to tell


def note(text: str) -> None:
    """A remark on what was done, escaped and dim."""
    say(dim(f"note: {escape_line(text)}"))


def emit(text: str) -> None:
    """Writes to stdout at once. Raises `ReaderGone`, on which the front ends quietly, or
    `OutputError`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as e:
        raise ReaderGone("nobody reads the output") from e
    except OSError as e:
        raise OutputError(f"cannot write the output: {e.strerror or e}") from e


def write_plainly(asked: bool) -> None:
    """Whether the user asked for no control sequences and no lines that are drawn twice."""
    global _asked_plain
    _asked_plain = asked


def wrap_words(asked: bool) -> None:
    """Whether lines on a terminal are broken between words; else the terminal breaks lines."""
    global _wraps_words
    _wraps_words = asked


def wraps_words() -> bool:
    """Whether stdout is a terminal on which words are to stay whole."""
    return _wraps_on(sys.stdout)


def _wraps_on(stream: IO[str] | None) -> bool:
    return _wraps_words and _is_terminal(stream) and not is_plain()


def _wrapped(text: str, stream: IO[str] | None) -> str:
    if len(text) < columns() or not _wraps_on(stream):
        return text
    from localllm.cli.word_wrap import wrapped

    return wrapped(text, columns())


def is_plain() -> bool:
    """Whether such output was asked for, or the terminal knows nothing else."""
    return _asked_plain or os.environ.get("TERM") == "dumb"


def styled(text: str, code: str) -> str:
    """`text` with an SGR code if stderr shows colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if is_screen() and not os.environ.get("NO_COLOR") else text


def dim(text: str) -> str:
    """`text` as what is beside the matter, if stderr shows colours."""
    return styled(text, "2")


def setup_streams() -> None:
    """Makes every character printable: what the encoding lacks appears escaped."""
    write_plainly(False)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def finite(value: Any) -> Any:
    """Plain data for JSON, which has no infinity: a ban in logit_bias, or a probability of 0."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class ProgressLine:
    """One line on stderr that is drawn over and over; nothing at all where there is no screen."""

    def __init__(self) -> None:
        self.shown = False
        self._enabled = is_screen()
        self._drawn_at = 0.0

    @property
    def enabled(self) -> bool:
        return self._enabled

    def draw(self, line: str, *, force: bool = False) -> None:
        """Shows `line`, cut to the screen, at most ten times a second unless forced."""
        now = time.monotonic()
        if not self._enabled or (not force and now - self._drawn_at < _REDRAW_S):
            return
        self._drawn_at = now
        # The last column stays free: some terminals wrap as soon as it is filled.
        self._write(_CLEAR_LINE + fit(escape_line(line), columns() - 1))
        self.shown = True

    def clear(self) -> None:
        if self.shown:
            self._write(_CLEAR_LINE)
            self.shown = False

    def _write(self, text: str) -> None:
        stream: IO[str] = sys.stderr
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            self._enabled = False


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Says on the screen what is waited for; the line goes when the wait is over. Where there is no
    screen, a wait that is long is said once."""
    line = ProgressLine()
    line.draw(text, force=True)
    timer = threading.Timer(LONG_WAIT_S, say, (escape_line(text),))
    timer.daemon = True
    if not line.enabled:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.clear()


def columns() -> int:
    """Width of the terminal behind stderr; 80 if it does not say."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def is_screen() -> bool:
    """Whether stderr is a terminal that understands control sequences."""
    return _is_terminal(sys.stderr) and not is_plain()


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
