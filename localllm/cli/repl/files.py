"""`/save` and `/load`: conversations on the disk, and other models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localllm import paths
from localllm.cli import output
from localllm.cli.repl import saved
from localllm.cli.report import count
from localllm.errors import ArgumentError, FileError, LocalLLMError
from localllm.store import catalog
from localllm.store.index import Store

if TYPE_CHECKING:
    from localllm.cli.repl.loop import Repl


FORCE = "--force"


def save(repl: Repl, argument: str) -> None:
    """Writes the conversation under a name or into a file of the user's. What is there already is
    overwritten if this run loaded or wrote it, or with --force."""
    words = argument.split()
    forced = FORCE in words[:1]
    name = argument.removeprefix(FORCE).strip() if forced else argument
    if not name:
        raise ArgumentError("/save needs a name", "/save NAME, /save NAME.md or /save ./file.json")
    path, chat = saved.path_of(name), repl.chat
    if not chat.messages:
        raise ArgumentError("there is nothing to save: the conversation is empty")
    if not forced and path not in repl.written and saved.exists(path):
        raise FileError(
            f"{path} is there already, and this conversation did not come from it",
            f"Choose another name, or overwrite it: /save {FORCE} {name}",
        )
    saved.save(
        path,
        saved.Saved(
            model=chat.found.label,
            digest=chat.found.digest,
            system=chat.settings.system,
            think=chat.settings.think,
            params=chat.settings.sampling,
            messages=chat.messages,
        ),
    )
    repl.written.add(path)
    output.say(
        output.dim(output.escape_line(f"saved {count(len(chat.messages), 'message')} as {path}"))
    )


def load(repl: Repl, argument: str) -> None:
    """Goes on with a saved conversation of that name, else with a model."""
    if not argument:
        known = saved.names()
        hint = f"Conversations here: {', '.join(known[:20])}" if known else "None is saved yet."
        raise ArgumentError("/load needs the name of a conversation or of a model", hint)
    path = _conversation(argument)
    if path is not None:
        found = saved.load(path)
        chat = repl.chat
        chat.replace(found)
        repl.written.add(path)
        line = f"{count(len(found.messages), 'message')} of {path.stem}"
        if found.model != chat.found.label or not chat.is_open:
            line += f", held with {found.model}: /load {found.model} goes on with that"
        output.say(output.dim(output.escape_line(line)))
        return
    repl.chat.switch(argument)
    info = repl.chat.session.info
    line = f"{repl.chat.found.label}, {info.description}"
    if repl.chat.messages:
        line += "; it is given the conversation so far (/clear forgets it)"
    output.say(output.dim(output.escape_line(line)))


def complete_save(words: list[str]) -> list[str]:
    """Names that are taken: the same one is usual."""
    return [*saved.names(), FORCE] if not words else saved.names() if words == [FORCE] else []


def complete_load(words: list[str]) -> list[str]:
    """Conversations, and models that are here."""
    if words:
        return []
    try:
        models = {str(model.ref) for model in Store(paths.current().models).list()}
        models |= {str(entry.ref) for entry in catalog.load(damaged=lambda e: None)}
    except LocalLLMError:
        models = set()  # a completion has no place for an error
    return [*saved.names(), *models]


def _conversation(text: str) -> Path | None:
    if saved.is_path(text):
        path = saved.path_of(text)
        return path if path.suffix == ".json" and _is_file(path) else None
    try:
        path = saved.path_of(text)
    except ArgumentError:
        return None  # such as smollm2:135m
    if path.suffix == ".md":
        raise ArgumentError(f"{text[:80]} is for reading", "Load the one that was saved as JSON.")
    return path if _is_file(path) else None


def _is_file(path: Path) -> bool:
    return saved.exists(path) and path.is_file()
