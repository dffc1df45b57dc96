"""What the commands of the prompt do; their names and help are in `localllm.slash`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localllm import slash
from localllm.cli import output
from localllm.cli.repl import editor, files, settings
from localllm.errors import ArgumentError
from localllm.params import PARAMETERS

if TYPE_CHECKING:
    from localllm.cli.repl.loop import Repl

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
_NONE = slash.Row("", "")


@dataclass(frozen=True)
class Command:
    """A row of the table. complete gives the words that may follow those already typed."""

    run: Callable[[Repl, str], None]
    complete: Callable[[list[str]], list[str]] = lambda words: []
    row: slash.Row = _NONE

    @property
    def usage(self) -> str:
        return self.row.usage

    @property
    def help(self) -> str:
        return self.row.help


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


_DONE_BY = {
    "help": Command(_help, lambda words: list(COMMANDS)),
    "set": Command(settings.set_, settings.complete_set),
    "show": Command(settings.show, lambda words: list(slash.SHOWN)),
    "system": Command(settings.system),
    "think": Command(settings.think, lambda words: list(settings.THINKING)),
    "stats": Command(settings.stats),
    "regenerate": Command(_regenerate),
    "edit": Command(editor.edit),
    "clear": Command(_clear),
    "save": Command(files.save, files.complete_save),
    "load": Command(files.load, files.complete_load),
    "bye": Command(_bye),
}
COMMANDS: dict[str, Command] = {
    name: replace(_DONE_BY[name], row=row) for name, row in slash.known_in(slash.RUN).items()
}
parse = slash.parse


def run(repl: Repl, name: str, argument: str) -> None:
    """Runs a command. Raises `ArgumentError` for one that does not exist."""
    COMMANDS[_known(name)].run(repl, argument)


def completions(text: str) -> list[str]:
    """The words that may take the place of the last word of a line that begins with /."""
    *before, word = text.split(" ")
    if not before:
        return sorted(f"/{name}" for name in COMMANDS if f"/{name}".startswith(word))
    try:
        row = COMMANDS[_known(before[0][1:].lower())]
    except ArgumentError:
        return []
    found = row.complete([each for each in before[1:] if each])
    return sorted(each for each in found if each.startswith(word))


def _known(name: str) -> str:
    return slash.find(name, slash.RUN)
