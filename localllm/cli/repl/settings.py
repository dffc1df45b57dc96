"""`/set`, `/show`, `/system`, `/think` and `/stats`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from localllm import slash
from localllm.cli import model_parts, output, prompt_text, report
from localllm.cli.answer_view import FOLD, HIDE, SHOW
from localllm.cli.generation_options import THINK
from localllm.errors import ArgumentError
from localllm.params import PARAMETERS, Parameter, find

if TYPE_CHECKING:
    from localllm.cli.repl.loop import Repl

THINKING = (*THINK, SHOW, FOLD, HIDE)
#: What is fixed when a model is loaded, and the option that sets it.
_AT_LOAD = {"num_ctx": "--ctx", "num_thread": "--threads", "ctx": "--ctx", "threads": "--threads"}
_BETWEEN = re.compile(r'"\s+"')

HELP = {
    "set": (
        "/set temperature 0.2           a parameter; /set parameter temperature 0.2 is the same",
        "/set temperature default       takes it back",
        '/set stop "END" "STOP"         several texts',
        "/set system TEXT               as /system",
        "/set think, nothink            as /think on, /think off",
        "/set history, nohistory        whether what is typed is kept",
        "/set verbose, quiet            counts and timings after each answer",
        "/set wordwrap, nowordwrap      whether lines are broken between words",
        "Parameters: " + ", ".join(PARAMETERS),
    ),
    "think": (
        "on, off, low, medium, high     asked of the model, if it can",
        "show                           prints all reasoning, now the last one",
        "fold                           a line for it",
        "hide                           nothing of it",
    ),
    "show": (", ".join(slash.SHOWN),),
    "save": (
        "NAME lies in the data folder; a name with a slash is a file of yours.",
        "What is there already is kept, unless this conversation came from it: --force overwrites.",
    ),
    "load": (
        "A saved conversation comes with its settings, but for those that the command line gave.",
        "Another model goes on with the conversation that is there.",
    ),
}


def set_(repl: Repl, argument: str) -> None:
    """Ollama's forms of /set, and the short `/set NAME VALUE`."""
    name, _, value = argument.partition(" ")
    name, value = name.lower(), value.strip()
    if not name:
        _show_all(repl)
    elif name in _WORDS:
        if value and name not in ("system", "think"):
            raise ArgumentError(f"/set {name} takes no value")
        _WORDS[name](repl, value)
    elif name == "parameter":
        if not value:
            _show_all(repl)
            return
        name, _, value = value.partition(" ")
        _set_parameter(repl, name, value.strip())
    else:
        _set_parameter(repl, name, value)


def show(repl: Repl, argument: str) -> None:
    """What is known about the model, or set."""
    what = slash.shown(argument)
    if what in slash.OF_MODEL:
        chat = repl.chat
        text = output.escape(model_parts.text_of(chat.found, what, chat.opening.template))
    else:
        text = _SHOWN[what](repl)
    output.emit(text.rstrip("\n") + "\n")


def system(repl: Repl, argument: str) -> None:
    """Sets the instructions, or shows them."""
    if not argument:
        output.emit(_system(repl) + "\n")
        return
    text = _unquoted(argument)
    prompt_text.require_text("the instructions", text)
    repl.chat.settings.system = text or None
    repl.chat.settings.own_system = False
    output.say(output.dim("The instructions hold from now on." if text else "No instructions."))


def think(repl: Repl, argument: str) -> None:
    """How the model reasons, and how it is shown."""
    settings, how = repl.chat.settings, argument.lower()
    if how in THINK:
        settings.think = THINK[how]
    elif how in THINKING:
        settings.thinking = how
        if how == SHOW and repl.chat.last_reasoning:
            text = output.escape(repl.chat.last_reasoning).rstrip("\n")
            output.say(output.dim(text))
            return
    elif how:
        raise ArgumentError(
            f"/think cannot be {argument[:40]!a}", f"It can be {', '.join(THINKING)}."
        )
    words = {"None": "as the model does", "True": "on", "False": "off"}
    asked = words.get(str(settings.think), str(settings.think))
    ways = {SHOW: "shown", FOLD: "folded into a line", HIDE: "hidden"}
    output.say(output.dim(f"reasoning: {asked}, {ways[settings.thinking]}"))


def stats(repl: Repl, argument: str) -> None:
    """Counts of the last answer, and of the conversation."""
    chat = repl.chat
    totals, session = chat.totals, chat.session
    if not totals.answers:
        output.emit("There is no answer yet.\n")
        return
    rows = {
        "last answer": report.footer(session.stats)
        if session.stats.prompt_tokens
        else f"none yet by {chat.found.label}",
        "answers": f"{totals.answers} in {totals.seconds:.1f} s",
        "prompts": report.count(totals.prompt_tokens, "token")
        + f", {totals.cached_tokens:,} of them from cache",
        "generated": report.count(totals.generated_tokens, "token")
        + (f", {totals.reasoning_tokens:,} of them reasoning" if totals.reasoning_tokens else ""),
        "context": f"{session.context_used:,} of {session.info.n_ctx:,} tokens in use",
    }
    output.emit(_rows(rows))


def complete_set(words: list[str]) -> list[str]:
    """Names of settings and parameters, then values where these are words."""
    if not words or words == ["parameter"]:
        return [*PARAMETERS, *(() if words else (*_WORDS, "parameter"))]
    if words == ["think"]:
        return list(THINKING)
    row = PARAMETERS.get(words[-1])
    return ["default", *(("true", "false") if row.kind is bool else ())] if row else []


def _set_parameter(repl: Repl, name: str, value: str) -> None:
    if option := _AT_LOAD.get(name.lower()):
        raise ArgumentError(
            f"{name} is fixed when the model is loaded", f"Start with: localllm run {option} ..."
        )
    row = find(name)
    sampling = repl.chat.settings.sampling
    if not value:
        current = _current(repl, row)
        output.tell(f"{row.name} is {current}\n  {row.help}\n  It may be {row.span}.\n")
        return
    if value.lower() == "default":
        sampling.pop(row.name, None)
    else:
        sampling[row.name] = _parsed(row, value)
    output.say(output.dim(f"{row.name} is {_current(repl, row)}"))


def _parsed(row: Parameter, value: str) -> Any:
    """Several texts may be given, each in quotes, as Ollama has it."""
    if row.kind == "strings" and value.startswith('"'):
        try:
            return row.checked(json.loads("[" + _BETWEEN.sub('","', value) + "]"))
        except ValueError:
            raise ArgumentError(
                f'{row.name}: {value[:80]!a} is not "text" or "text" "text"'
            ) from None
    return row.parse(value)


def _value(value: Any) -> str:
    return output.escape_line(json.dumps(value, ensure_ascii=False))


def _show_all(repl: Repl) -> None:
    output.emit(_parameters(repl) + "\n")


def _verbose(wanted: bool, line: str) -> Callable[[Repl, str], None]:
    def change(repl: Repl, argument: str) -> None:
        repl.chat.settings.verbose = wanted
        output.say(output.dim(line))

    return change


def _history(wanted: bool, line: str) -> Callable[[Repl, str], None]:
    def change(repl: Repl, argument: str) -> None:
        repl.reader.keep_history(wanted)
        output.say(output.dim(line))

    return change


def _word_wrap(wanted: bool, line: str) -> Callable[[Repl, str], None]:
    def change(repl: Repl, argument: str) -> None:
        output.wrap_words(wanted)
        output.say(output.dim(line))

    return change


_WORDS: dict[str, Callable[[Repl, str], None]] = {
    "system": system,
    "think": lambda repl, argument: think(repl, argument or "on"),
    "nothink": lambda repl, argument: think(repl, "off"),
    "history": _history(True, "What is typed is kept for the next time."),
    "nohistory": _history(False, "What is typed is not kept."),
    "wordwrap": _word_wrap(True, "Lines are broken between words."),
    "nowordwrap": _word_wrap(False, "The terminal breaks lines."),
    "verbose": _verbose(True, "Counts and timings follow each answer."),
    "quiet": _verbose(False, "No counts and timings."),
}


def _unquoted(text: str) -> str:
    for quotes in ('"""', '"'):
        if len(text) >= 2 * len(quotes) and text.startswith(quotes) and text.endswith(quotes):
            return text[len(quotes) : -len(quotes)].strip("\n")
    return text


def _rows(rows: dict[str, str]) -> str:
    return "".join(f"{name:13} {output.escape_line(text)}\n" for name, text in rows.items() if text)


def _info(repl: Repl) -> str:
    info, found = repl.chat.session.info, repl.chat.found
    return _rows(
        {
            "model": found.label,
            "title": info.description,
            "architecture": info.architecture,
            "engine": f"{info.engine}, {info.n_threads} threads, {info.isa}",
            "parameters": output.count_text(info.n_params),
            "weights": output.size_text(info.weight_bytes),
            "context": f"{repl.chat.session.context_used:,} of {info.n_ctx:,} tokens in use",
            "reasoning": "yes" if info.can_think else "no",
            "file": str(found.path),
        }
    )


def _parameters(repl: Repl) -> str:
    lines = [f"{name:22} {_current(repl, row)}" for name, row in PARAMETERS.items()]
    return "\n".join(lines)


def _current(repl: Repl, row: Parameter) -> str:
    """The value of a parameter and where it comes from, if it is not the default."""
    sampling, recommended = repl.chat.settings.sampling, repl.chat.recommended
    carried = repl.chat.carried.sampling
    if row.name in sampling:
        return f"{_value(sampling[row.name])}  (set)"
    if row.name in carried:
        return f"{_value(carried[row.name])}  (set by the model)"
    if row.name in recommended:
        return f"{_value(recommended[row.name])}  (recommended by the model's file)"
    return "a new one for each answer" if row.name == "seed" else _value(row.default)


def _system(repl: Repl) -> str:
    return output.escape(repl.chat.system or "There are no instructions.")


_SHOWN: dict[str, Callable[[Repl], str]] = {
    "info": _info,
    "parameters": _parameters,
    "system": _system,
}
