"""`localllm run`: one prompt and one answer, or without a prompt the conversation of `repl`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import Any

import click

from localllm.cli import opening, output, prompt_text, report
from localllm.cli.answer_view import FOLD, HIDE, SHOW, AnswerView
from localllm.cli.asking import Asker, Recorder, beginning, parameters
from localllm.cli.finding import hints
from localllm.cli.generation_options import RunCommand, chosen, parameter_options
from localllm.cli.interrupt import EXIT_CODE, Interrupts
from localllm.cli.loading_options import (
    Opening,
    beginning_options,
    loading_options,
    opening_of,
    system_of,
    think_of,
)
from localllm.cli.options import ModelName
from localllm.errors import ArgumentError


@dataclass(frozen=True)
class Wishes:
    """What a command line asks of its answers. sampling: the parameters that were given."""

    opening: Opening
    sampling: dict[str, Any]
    system: str | None
    think: bool | str | None
    thinking: str
    raw: bool
    record: bool
    verbose: bool


@click.command("run", cls=RunCommand)
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.argument("prompt", nargs=-1)
@parameter_options
@beginning_options
@click.option(
    "--show-thinking/--hide-thinking",
    default=None,
    help="Show all reasoning, or none. [default: a line]",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without a template.")
@loading_options
@click.option("--plain", is_flag=True, help="No control sequences: for screen readers and pipes.")
@click.option("--no-wrap", is_flag=True, help="Let the terminal break lines, also inside words.")
@click.option(
    "--no-record",
    is_flag=True,
    help="Keep no record of the answers for replay, and nothing of them on a server.",
)
@click.option("--verbose", "-v", is_flag=True, help="Counts and timings on stderr at the end.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object with the exact text at the end, nothing before.",
)
def command(model: str, prompt: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Answer PROMPT with a model, which is pulled first if it is not here.

    Without PROMPT on a terminal a conversation begins: /help lists its commands. Otherwise the
    prompt is the arguments, or stdin, or both: first the arguments, then an empty line and the
    text from stdin. With --plain and no PROMPT every line from stdin is a turn of a conversation.

    On the screen control characters in the answer are shown escaped, as \\x1b; --json has the
    exact text. Ctrl-C ends the answer, a second one ends the program.
    """
    plain = options.pop("plain")
    output.write_plainly(plain)
    output.wrap_words(not options.pop("no_wrap"))
    wishes = _wishes(options)
    talks = plain or (sys.stdin is not None and sys.stdin.isatty())
    if not prompt and talks and not as_json:
        from localllm.cli.repl.loop import converse

        return converse(model, wishes)
    return _answer_once(model, prompt_text.from_command_line(prompt), wishes, as_json=as_json)


def _wishes(options: dict[str, Any]) -> Wishes:
    raw, template = options.pop("raw"), options["template"]
    system = system_of(options)
    if raw and (system is not None or template is not None):
        name = "--system" if system is not None else "--template"
        raise ArgumentError(
            f"{name} needs a template, which --raw leaves out",
            "Write the instructions into the prompt, or leave out --raw.",
        )
    think = think_of(options)
    show, record = options.pop("show_thinking"), not options.pop("no_record")
    return Wishes(
        opening=replace(opening_of(options, raw=raw), store=record),
        system=system,
        think=think,
        thinking=FOLD if show is None else SHOW if show else HIDE,
        raw=raw,
        record=record,
        verbose=options.pop("verbose"),
        sampling=chosen(options),  # what is left
    )


def _answer_once(model: str, text: str, wishes: Wishes, *, as_json: bool) -> int:
    found = opening.find(model)
    with hints(found), opening.load(found, wishes.opening) as session:
        carried = found.settings
        params = parameters(session, {**carried.sampling, **wishes.sampling})
        before = [] if wishes.raw else beginning(carried, wishes.system)
        messages = [*before, {"role": "user", "content": text}]
        view = AnswerView(session, thinking=wishes.thinking, quiet=as_json)
        asker = Asker(found, session, raw=wishes.raw)
        with Interrupts(session.cancel):
            shown = view.show(asker.ask(messages, params, wishes.think))
        facts = report.facts(found, session, params, wishes.opening.kv_type, shown.finish_reason)
        recorded = Recorder(enabled=wishes.record).save(found, session)
    if as_json:
        output.emit(json.dumps(output.finite(report.with_text(facts, shown))) + "\n")
    else:
        for note in session.notes:
            output.note(note)
    if wishes.verbose:
        output.say(report.verbose_text(facts))
        if recorded is not None:
            output.say(f"{'replay with':12} localllm replay {recorded}")
    if shown.finish_reason == "length" and params.max_tokens is None:
        output.say(
            f"note: the answer ends here because the context of {facts['n_ctx']} tokens is full"
        )
    return EXIT_CODE if shown.finish_reason == "cancelled" else 0
