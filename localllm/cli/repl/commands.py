"""The commands of the prompt: one table of names, usage, help and functions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.cli import output
from localllm.cli.repl import editor, files, settings
from localllm.errors import ArgumentError
from localllm.params import PARAMETERS

if TYPE_CHECKING:
    from localllm.cli.repl.loop import Repl

_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?:\s+(.*))?", re.DOTALL)
_KEYS = (
    ("Enter", "send"),
    ("Alt-Enter", "a new line"),
    ('"""', "begins and ends a text of several lines"),
    ("@file", "sends the text of a file along; Tab completes it"),
    ("Tab", "completes commands, names and files"),
    ("Up, Ctrl-R", "go back to what was typed, search it"),
    ("Ctrl-X Ctrl-E", "edit the text in $EDITOR"),
    ("Ctrl-C", "stops the answer, or clears the line"),
    ("Ctrl-D", "leaves"),
)


@dataclass(frozen=True)
class Command:
    """A row of the table. complete gives the words that may follow those already typed."""

    usage: str
    help: str
    run: Callable[[Repl, str], None]
    complete: Callable[[list[str]], list[str]] = lambda words: []
    also: tuple[str, ...] = ()  # other names


def _help(repl: Repl, argument: str) -> None:
    if argument:
        name = _known(argument.split()[0].lstrip("/").lower())
        row = COMMANDS[name]
        lines = [f"/{name} {row.usage}".rstrip(), f"  {row.help}"]
        lines += [f"  {line}" for line in settings.HELP.get(name, ())]
    else:
        rows = [(f"/{name} {row.usage}".rstrip(), row.help) for name, row in COMMANDS.items()]
        lines = [*_columns(rows), "", *_columns(list(_KEYS))]
    output.tell("".join(f"{line}\n" for line in lines))


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    if width + max(len(right) for _, right in rows) + 4 > output.columns():
        return [line for left, right in rows for line in (f"  {left}", f"    {right}")]
    return [f"  {left:{width}}  {right}" for left, right in rows]


def _clear(repl: Repl, argument: str) -> None:
    repl.chat.clear()
    output.say(output.dim("The conversation is forgotten."))


def _regenerate(repl: Repl, argument: str) -> None:
    seed = PARAMETERS["seed"].parse(argument) if argument else None
    repl.chat.regenerate(seed)


def _bye(repl: Repl, argument: str) -> None:
    repl.leaving = True


COMMANDS: dict[str, Command] = {
    "help": Command(
        "[COMMAND]", "this list, or more on a command", _help, lambda words: list(COMMANDS), ("?",)
    ),
    "set": Command(
        "[NAME VALUE]", "change a parameter or a setting", settings.set_, settings.complete_set
    ),
    "show": Command(
        "[WHAT]", "the model and the settings", settings.show, lambda words: list(settings.SHOWN)
    ),
    "system": Command(
        "[TEXT]", "instructions before the conversation; none: show them", settings.system
    ),
    "think": Command(
        "[HOW]", "reasoning: whether, how much, and how it is shown", settings.think,
        lambda words: list(settings.THINKING),
    ),
    "stats": Command("", "counts of the last answer and of the conversation", settings.stats),
    "regenerate": Command("[SEED]", "answer the last question again", _regenerate),
    "edit": Command("[TEXT]", "write a text in $EDITOR and send it", editor.edit),
    "clear": Command("", "forget the conversation", _clear),
    "save": Command(
        "[--force] NAME", "keep the conversation; NAME.md to read it", files.save,
        files.complete_save,
    ),
    "load": Command(
        "NAME", "go on with a saved conversation, or another model", files.load,
        files.complete_load,
    ),
    "bye": Command("", "leave", _bye, also=("exit", "quit")),
}  # fmt: skip
_NAMES = {also: name for name, row in COMMANDS.items() for also in (name, *row.also)}


def parse(text: str) -> tuple[str, str] | None:
    """(name, argument) of a text that is a command; None for any other. A path is none."""
    match = _COMMAND.fullmatch(text.strip())
    return (match[1].lower(), (match[2] or "").strip()) if match else None


def run(repl: Repl, name: str, argument: str) -> None:
    """Runs a command. Raises `ArgumentError` for one that does not exist."""
    COMMANDS[_known(name)].run(repl, argument)


def completions(text: str) -> list[str]:
    """The words that may take the place of the last word of a line that begins with /."""
    *before, word = text.split(" ")
    if not before:
        return sorted(f"/{name}" for name in COMMANDS if f"/{name}".startswith(word))
    row = COMMANDS.get(_NAMES.get(before[0][1:].lower(), ""))
    found = row.complete([each for each in before[1:] if each]) if row else []
    return sorted(each for each in found if each.startswith(word))


def _known(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    near = difflib.get_close_matches(name, _NAMES, n=1)
    raise ArgumentError(
        f"there is no command /{name[:40]}",
        f"Did you mean /{near[0]}?" if near else "/help lists the commands.",
    )
