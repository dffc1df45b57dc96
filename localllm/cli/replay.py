"""`localllm replay`: recorded answers, given again and compared byte for byte."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from localllm import moments, paths
from localllm.cli import output
from localllm.cli.comparison import Comparison
from localllm.cli.confirm import confirm_deletion
from localllm.cli.finding import Found, hints
from localllm.cli.interrupt import EXIT_CODE, Interrupts, exit_at_once
from localllm.cli.options import ModelName, ParamType, machine_options
from localllm.cli.recorded_model import find_recorded
from localllm.cli.table import Column, render, screen_width
from localllm.errors import ArgumentError, LocalLLMError
from localllm.store.answers import Answer, Answers

if TYPE_CHECKING:
    from localllm.session import Session

_COMPLETED = 50  # ids that the Tab key offers at most
_COLUMNS = (
    Column("ID"),
    Column("AGE"),
    Column("MODEL", cut=True),
    Column("TOKENS", right=True),
    Column("QUESTION", cut=True),
)
_TITLE_CELLS = 60


class AnswerId(ParamType):
    """The id of a recorded answer, or its beginning."""

    name = "id"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            answers = _records().newest(limit=_COMPLETED)
        except LocalLLMError:
            return []  # a completion has no place for an error
        return [
            CompletionItem(answer.id, help=output.escape_line(answer.title)[:_TITLE_CELLS])
            for answer in answers
            if answer.id.startswith(incomplete)
        ]


@click.command("replay")
@click.argument("answer_id", metavar="[ID]", required=False, type=AnswerId())
@click.option("--list", "-l", "list_all", is_flag=True, help="The answers on record.")
@click.option("--show", is_flag=True, help="Show the record; run nothing.")
@click.option("--delete", is_flag=True, help="Delete the record.")
@click.option("--delete-all", is_flag=True, help="Delete all records.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before --delete-all.")
@click.option(
    "--model",
    metavar="NAME|PATH",
    type=ModelName(),
    help="Where the model is now. [default: found by name and digest]",
)
@machine_options
@click.option("--json", "as_json", is_flag=True, help="One JSON value.")
def command(
    answer_id: str | None,
    list_all: bool,
    show: bool,
    delete: bool,
    delete_all: bool,
    yes: bool,
    model: str | None,
    threads: int,
    isa: str | None,
    as_json: bool,
) -> int:
    """Give the recorded answer ID again and compare it, token by token and byte by byte.

    Every answer of `run` is recorded with its fingerprint: the model's digest, the engine and its
    arithmetic, all parameters with the seed, the prompt as tokens. The first 4 digits of an ID are
    enough if no other begins so. The exit code is 1 if the answer differs. Records are readable
    only by you; LOCALLLM_NO_RECORDS=1 keeps none.
    """
    modes = {"--list": list_all, "--show": show, "--delete": delete, "--delete-all": delete_all}
    chosen = [name for name, on in modes.items() if on]
    if len(chosen) > 1:
        raise ArgumentError(f"{chosen[0]} and {chosen[1]} exclude each other")
    wants_id = not (list_all or delete_all)
    if wants_id != (answer_id is not None):
        raise ArgumentError(
            "which answer? There is no ID" if wants_id else f"{chosen[0]} takes no ID",
            "See: localllm replay --list",
        )
    records = _records()
    if list_all:
        _list(records, as_json)
    elif delete_all:
        _delete_all(records, yes)
    elif delete:
        output.emit(f"{records.delete(answer_id or '')} deleted\n")
    elif show:
        output.emit(_shown(records.find(answer_id or ""), as_json))
    else:
        return _replay(records.find(answer_id or ""), model, threads, isa, as_json)
    return 0


def _records() -> Answers:
    return Answers(paths.current().answers)


def _replay(answer: Answer, given: str | None, threads: int, isa: str | None, as_json: bool) -> int:
    if not answer.token_ids:
        raise ArgumentError(f"the answer {answer.id} was cancelled before its first token")
    line = output.ProgressLine()
    found = find_recorded(
        answer, given, lambda label, share: line.draw(f"reading {label} {share:4.0%}")
    )
    line.clear()
    if found.label != answer.model and given is None:
        output.say(output.escape_line(f"note: {answer.model} is now {found.label}"))
    _require_arithmetic(answer)

    from localllm.session import Session

    asked = answer.fingerprint
    with Interrupts(exit_at_once) as interrupts, hints(found):
        session = Session.open(
            found.path,
            engine="native" if asked.engine == "native" else "llama.cpp",
            n_threads=threads,
            isa=isa,
            kv_type=asked.kv_type,
            digest=asked.model_digest,
            label=answer.model,
            progress=lambda share: line.draw(f"loading {found.label} {share:4.0%}"),
        )
        with session:
            interrupts.first = session.cancel
            line.clear()
            comparison = _compared(session, answer, line, quiet=as_json)
    if as_json:
        output.emit(json.dumps(_report(answer, found, comparison)) + "\n")
    else:
        output.say(output.escape_line(comparison.verdict))
    if comparison.interrupted:
        return EXIT_CODE
    return 0 if comparison.difference is None else 1


def _require_arithmetic(answer: Answer) -> None:
    """Refuses before a model is loaded what could not be the same in every bit."""
    asked = answer.fingerprint
    if asked.engine != "native":
        return  # the session knows its version once it is open
    from localllm.session import machine_facts

    here = machine_facts().arithmetic_version
    if here != asked.arithmetic:
        raise ArgumentError(
            f"the answer {answer.id} was computed with arithmetic {asked.arithmetic} of the "
            f"engine, this localllm has arithmetic {here}: its bits would not be the same",
            "The record itself: localllm replay --show " + answer.id,
        )


def _compared(
    session: Session, answer: Answer, line: output.ProgressLine, *, quiet: bool
) -> Comparison:
    """Prints the answer as it comes, up to the first difference. Reasoning is only counted."""
    comparison = Comparison(answer)
    chunks = session.replay(answer)
    assert isinstance(chunks, Generator)
    ended = True  # with a new line
    with contextlib.closing(chunks):
        for chunk in chunks:
            comparison.feed(chunk.token_ids, chunk.text, chunk.reasoning, chunk.finish_reason)
            if quiet or not chunk.text:
                line.draw(f"{comparison.n_identical} of {len(answer.token_ids)} tokens, identical")
            else:
                line.clear()
                output.emit(output.escape(chunk.text))
                ended = chunk.text.endswith("\n")
            if comparison.difference is not None:
                break
    line.clear()
    if not ended:
        output.emit("\n")
    return comparison


def _report(answer: Answer, found: Found, comparison: Comparison) -> dict[str, Any]:
    return {
        "id": answer.id,
        "model": found.label,
        "path": str(found.path),
        "identical": comparison.difference is None and not comparison.interrupted,
        "interrupted": comparison.interrupted,
        "difference": comparison.difference,
        "identical_tokens": comparison.n_identical,
        "recorded_tokens": len(answer.token_ids),
        "text": comparison.text,
        "reasoning": comparison.reasoning,
        "finish_reason": comparison.finish_reason,
    }


def _list(records: Answers, as_json: bool) -> None:
    problems: list[LocalLLMError] = []
    answers = records.newest(on_problem=problems.append)
    if as_json:
        output.emit(json.dumps([_summary(answer) for answer in answers]) + "\n")
    elif answers:
        rows = [
            [a.id, moments.ago(a.created), a.model, str(len(a.token_ids)), a.title[:_TITLE_CELLS]]
            for a in answers
        ]
        output.emit(render(_COLUMNS, rows, screen_width()))
    else:
        output.say("No answers on record. `localllm run` records each one that it gives.")
    for problem in problems:
        hint = f" {problem.hint}" if problem.hint else ""
        output.say(f"note: {output.escape_line(problem.message + '.' + hint)}")


def _summary(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id,
        "created": answer.created,
        "model": answer.model,
        "model_digest": answer.fingerprint.model_digest,
        "engine": answer.fingerprint.engine,
        "tokens": len(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "title": answer.title,
    }


def _delete_all(records: Answers, yes: bool) -> None:
    if not yes:
        confirm_deletion("all recorded answers")
    n = records.delete_all()
    output.emit(f"{n} {'record' if n == 1 else 'records'} deleted\n")


def _shown(answer: Answer, as_json: bool) -> str:
    if as_json:
        return json.dumps(output.finite({"id": answer.id, **asdict(answer)})) + "\n"
    asked = answer.fingerprint
    params = ", ".join(f"{name} {json.dumps(value)}" for name, value in asked.params.items())
    prompt = f"{len(asked.prompt_ids)} tokens"
    rows = {
        "answer": answer.id,
        "question": answer.title,
        "model": f"{answer.model}, {asked.model_digest}",
        "engine": f"{asked.engine}, arithmetic {asked.arithmetic}, context in {asked.kv_type}",
        "given": answer.created,
        "parameters": params or "all at their defaults",
        "prompt": prompt + (", continued as it is" if answer.raw else ""),
        "length": f"{len(answer.token_ids)} tokens, ended by {answer.finish_reason}",
    }
    text = "".join(f"{name:12} {output.escape_line(value)}\n" for name, value in rows.items())
    for title, body in (("reasoning", answer.reasoning), ("text", answer.text)):
        if body:
            text += f"\n{title}\n{output.escape(body)}" + ("" if body.endswith("\n") else "\n")
    return text
