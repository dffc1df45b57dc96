"""The loop of a conversation: reads a line or a longer text, runs a command or asks the model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localllm.attachments import attach
from localllm.cli import opening, output, prompt_text
from localllm.cli.repl import commands
from localllm.cli.repl.chat import Chat, Message
from localllm.cli.repl.terminal import orderly_end
from localllm.errors import LocalLLMError

if TYPE_CHECKING:
    from localllm.cli.run import Wishes

_LEAVE = "To leave: /bye, or Ctrl-D."


class Reader(Protocol):
    """Where the user's texts come from."""

    interactive: bool  # a person is at the other end
    edits: bool  # the line can be edited, and Up brings earlier texts back

    def keep_history(self, wanted: bool) -> None:
        """Whether what is typed is kept from now on. Raises `ArgumentError` where it cannot be."""

    def read(self) -> str:
        """The next text. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def expand(self, text: str) -> str:
        """The text with what stands for a long paste replaced by it."""

    def was_empty(self) -> bool:
        """Whether the last Ctrl-C came while nothing was typed."""


class Repl:
    """A conversation, where its lines come from, and what is to happen next."""

    def __init__(self, chat: Chat, reader: Reader) -> None:
        self.chat, self.reader = chat, reader
        self.unsent = ""  # a text that was not answered, until another one is
        self.written: set[Path] = set()  # files that /save may write again
        self.leaving = False
        self._sending = False
        self._told_kept = False
        self._n_failed = 0
        self._n_interrupts = 0

    def run(self) -> int:
        """Reads and answers until the user leaves; returns the exit code."""
        while not self.leaving:
            try:
                self._turn()
            except KeyboardInterrupt:
                self._interrupted()
            except output.OutputError:
                raise
            except LocalLLMError as e:
                self._failed(e)
            except Exception as e:
                if os.environ.get("LOCALLLM_DEBUG"):
                    raise
                self._failed(
                    LocalLLMError(
                        f"internal error: {type(e).__name__}: {e}",
                        "This is a fault in localllm. The conversation goes on; /save keeps it.",
                    )
                )
        return 1 if self._n_failed and not self.reader.interactive else 0

    def ask(self, text: str) -> None:
        """Sends a text that is no command. Whatever keeps it from being answered, it is kept."""
        self.unsent, self._sending = text, True
        attached = attach(text)
        content = self.reader.expand(attached.text)
        prompt_text.require_text("the text", content)
        for line in attached.told:
            output.say(output.dim(line))
        message: Message = {"role": "user", "content": content}
        if attached.pictures:
            message["images"] = attached.pictures
        if self.chat.send(message):
            self.unsent = ""
        else:
            self._tell_kept()

    def _turn(self) -> None:
        self._sending = False
        try:
            text = self.reader.read()
        except EOFError:
            self.leaving = True
            if self.reader.interactive:
                output.say("")
            return
        self._n_interrupts = 0
        if quoted := unquoted(text):
            self.ask(quoted)
        elif command := commands.parse(text):
            commands.run(self, *command)
        elif text.strip():
            self.ask(text.strip("\n"))

    def _failed(self, error: LocalLLMError) -> None:
        self._n_failed += 1
        output.print_error(error)
        if self._sending:
            self._tell_kept()

    def _tell_kept(self) -> None:
        """Says, the first time, where a text is that was not answered."""
        if self.reader.interactive and not self._told_kept:
            self._told_kept = True
            ways = "Up brings it back, /edit too" if self.reader.edits else "/edit brings it back"
            output.say(output.dim(f"The text is kept: {ways}."))

    def _interrupted(self) -> None:
        if not self.reader.edits:
            output.say("")  # the terminal shows ^C and stays on the line
        if not self.reader.was_empty():
            self._n_interrupts = 0
            return
        self._n_interrupts += 1
        if self._n_interrupts >= 2:
            output.say(_LEAVE)


def unquoted(text: str) -> str:
    '''What is between the quotes of a text in three quotes (`"""`); empty for any other.'''
    stripped = text.strip()
    if len(stripped) > 6 and stripped.startswith('"""') and stripped.endswith('"""'):
        return stripped[3:-3].strip("\n")
    return ""


def converse(model: str, wishes: Wishes) -> int:
    """Opens the model and holds a conversation on this process's terminal, or on its pipes."""
    found = opening.find(model)
    chat = Chat(found, opening.load(found, wishes.opening), wishes)
    try:
        with orderly_end():
            reader = _reader()
            if reader.interactive:
                about = output.escape_line(f"{found.label}, {chat.session.info.description}")
                output.say(output.dim(f"{about}. /help lists the commands, /bye leaves."))
            return Repl(chat, reader).run()
    finally:
        chat.close()


def _reader() -> Reader:
    """The line editor where lines can be edited: on a terminal on both sides."""
    if output.is_plain() or not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        from localllm.cli.repl.plain_reader import PlainReader

        return PlainReader()
    from localllm.cli.repl.line_editor import LineEditor

    return LineEditor(commands.completions)
