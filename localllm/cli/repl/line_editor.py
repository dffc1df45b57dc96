"""The line editor of the prompt: the one place that uses prompt_toolkit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.color_depth import ColorDepth

from localllm import attachments
from localllm.cli import output
from localllm.cli.repl import history
from localllm.cli.repl.plain_reader import open_quotes
from localllm.errors import ArgumentError

MAX_SHOWN_PASTE = 4096  # bytes; a longer paste is shown as a placeholder


class LineEditor:
    """Texts of one or more lines from a terminal, with history and completion."""

    interactive = True
    edits = True

    def __init__(self, complete: Callable[[str], list[str]]) -> None:
        self._history = history.HistoryFile()
        self._pastes = Pastes()
        self._interrupted = ""
        self._remarked = False
        self._prompt: PromptSession[str] = PromptSession(
            ">>> ",
            multiline=True,
            prompt_continuation=lambda width, line, wrap: "" if wrap else "... ",
            completer=_Words(complete),
            complete_while_typing=False,
            history=_History(self._history),
            key_bindings=self._bindings(),
            input_processors=[_Harmless()],
            enable_suspend=True,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            output=_output(),
        )

    def keep_history(self, wanted: bool) -> None:
        if wanted and not history.environment_allows():
            raise ArgumentError(f"{history.VARIABLE} is set, so what is typed is not kept")
        self._history.enabled = wanted

    def read(self) -> str:
        self._interrupted = ""
        text = self._prompt.prompt()
        if self._history.problem and not self._remarked:
            self._remarked = True
            output.note(self._history.problem)
        return text

    def expand(self, text: str) -> str:
        return self._pastes.expand(text)

    def was_empty(self) -> bool:
        return not self._interrupted.strip()

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            if open_quotes(event.current_buffer.text):
                event.current_buffer.insert_text("\n")
            else:
                event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self._interrupted = event.current_buffer.text
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            event.current_buffer.insert_text(self._pastes.shown(text))

        @keys.add(Keys.Vt100MouseEvent)
        def _(event: KeyPressEvent) -> None:
            """Mice are off. prompt_toolkit takes a colour (ESC [ 31 m) for one and fails on it."""

        @keys.add("backspace")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            buffer.delete_before_cursor(self._pastes.length_before(buffer.document))

        return keys


class Pastes:
    """Long pastes, each behind a short text that stands for it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def shown(self, text: str) -> str:
        """What to show for a paste: a placeholder if it is long."""
        n_bytes = len(text.encode("utf-8", "replace"))
        if n_bytes <= MAX_SHOWN_PASTE:
            return text
        size = output.size_text(n_bytes)
        placeholder, n = f"[pasted {size}]", 1
        while self._texts.get(placeholder, text) != text:
            n += 1
            placeholder = f"[pasted {size}, {n}]"
        self._texts[placeholder] = text
        return placeholder

    def expand(self, text: str) -> str:
        """A text with every placeholder replaced by what it stands for."""
        if not self._texts:
            return text
        pattern = "|".join(map(re.escape, self._texts))
        return re.sub(pattern, lambda match: self._texts[match[0]], text)

    def length_before(self, document: Document) -> int:
        """Characters that a backspace takes: a whole placeholder, or one."""
        before = document.text_before_cursor
        return next((len(each) for each in self._texts if before.endswith(each)), 1)


class _History(History):
    """prompt_toolkit's history over our file."""

    def __init__(self, file: history.HistoryFile) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._file.read())

    def store_string(self, string: str) -> None:
        self._file.add(string)


class _Harmless(Processor):
    """Shows characters that could reorder or break the line as U+FFFD. Each stays one character,
    so positions need no mapping."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments: StyleAndTextTuples = [
            (fragment[0], "".join("\ufffd" if output.escape(c) != c else c for c in fragment[1]))
            if output.escape(fragment[1]) != fragment[1]
            else fragment
            for fragment in transformation_input.fragments
        ]
        return Transformation(fragments)


class _Words(Completer):
    """Commands with their arguments, and files after @."""

    def __init__(self, complete: Callable[[str], list[str]]) -> None:
        self._complete = complete

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        line = document.text_before_cursor
        n_typed, files = attachments.completions(line)
        if files:
            for text, name in files:
                yield Completion(text, -n_typed, display=name)
        elif line.startswith("/") and "\n" not in line:
            word = line.rpartition(" ")[2]
            for each in self._complete(line):
                yield Completion(each, -len(word), display=output.escape_line(each))


def _output() -> Output:
    if os.name == "nt":
        return create_output(stdout=sys.stdout)
    from prompt_toolkit.output.vt100 import Vt100_Output

    class Quiet(Vt100_Output):
        """Asks the terminal nothing: where it does not answer, a warning would follow."""

        @property
        def responds_to_cpr(self) -> bool:
            return False

    return Quiet.from_pty(sys.stdout, term=os.environ.get("TERM"))
