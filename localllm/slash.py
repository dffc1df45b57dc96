"""The `/` commands of a conversation: one table of names, usage and help, for the prompt of `run`
and for the chat. What a command does is up to these."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localllm.errors import ArgumentError

_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?:\s+(.*))?", re.DOTALL)
RUN, CHAT = "run", "chat"
OF_MODEL = ("license", "modelfile", "template")
"""What `/show` shows of the model's own texts."""
SHOWN = ("info", "license", "modelfile", "parameters", "system", "template")


@dataclass(frozen=True)
class Row:
    """also: other names. where: what knows the command, RUN, CHAT or both."""

    usage: str
    help: str
    also: tuple[str, ...] = ()
    where: tuple[str, ...] = (RUN, CHAT)


ROWS = {
    "help": Row("[COMMAND]", "this list, or more on a command", ("?",)),
    "set": Row("[NAME VALUE]", "change a parameter or a setting"),
    "show": Row("[WHAT]", "the model and the settings"),
    "system": Row("[TEXT]", "instructions before the conversation; none: show them"),
    "think": Row("[HOW]", "reasoning: whether, how much, and how it is shown"),
    "stats": Row("", "counts of the last answer and of the conversation"),
    "regenerate": Row("[SEED]", "answer the last question again"),
    "continue": Row("", "go on with an answer that was cut", where=(CHAT,)),
    "undo": Row("", "take the last question and its answer back", where=(CHAT,)),
    "copy": Row("", "copy the last answer", where=(CHAT,)),
    "edit": Row("[TEXT]", "write a text in $EDITOR and send it"),
    "clear": Row("", "forget the conversation", ("new",)),
    "save": Row("[--force] NAME", "keep the conversation; NAME.md to read it"),
    "load": Row("NAME", "go on with a saved conversation, or another model", ("model",)),
    "models": Row("", "choose, pull and delete models", where=(CHAT,)),
    "search": Row("[TEXT]", "search all conversations", where=(CHAT,)),
    "compare": Row("", "one question to two models", where=(CHAT,)),
    "bye": Row("", "leave", ("exit", "quit")),
}


def known_in(where: str) -> dict[str, Row]:
    """The commands of one place."""
    return {name: row for name, row in ROWS.items() if where in row.where}


def parse(text: str) -> tuple[str, str] | None:
    """(name, argument) of a text that is a command; None for any other. A path is none."""
    match = _COMMAND.fullmatch(text.strip())
    return (match[1].lower(), (match[2] or "").strip()) if match else None


def shown(argument: str) -> str:
    """Which of `SHOWN` is meant. Raises `ArgumentError` for anything else."""
    what = argument.lower() or "info"
    if what not in SHOWN:
        raise ArgumentError(
            f"there is nothing called {argument[:40]!a} to show", f"There is: {', '.join(SHOWN)}"
        )
    return what


def find(name: str, where: str) -> str:
    """The first name of a command. Raises `ArgumentError` for one that does not exist there."""
    names = {also: name for name, row in known_in(where).items() for also in (name, *row.also)}
    if name in names:
        return names[name]
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    raise ArgumentError(
        f"there is no command /{name[:40]}",
        f"Did you mean /{near[0]}?" if near else "/help lists the commands.",
    )
