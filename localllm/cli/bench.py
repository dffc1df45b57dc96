"""`localllm bench`: how fast a model runs on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localllm.cli import bench_picture, output, speed_notes
from localllm.cli.bench_runs import (
    DECODE_DEPTHS,
    Case,
    Result,
    cases_that_fit,
    context_needed,
    run,
)
from localllm.cli.finding import Found, find_model, hints
from localllm.cli.interrupt import EXIT_CODE, Interrupts, exit_at_once
from localllm.cli.options import ModelName, Number, machine_options
from localllm.errors import ArgumentError, CancelledError

if TYPE_CHECKING:
    from localllm.cli.bench_report import EngineFacts, Machine
    from localllm.session import Session

ENGINES = ("auto", "native", "llama.cpp")


@dataclass(frozen=True)
class Wish:
    """What is to be measured, and how."""

    engines: tuple[str, ...]
    repetitions: int
    budget_s: float
    n_threads: int
    isa: str | None


@click.command("bench")
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="What runs the model.",
)
@click.option("--compare", is_flag=True, help="Run llama.cpp in turn with the native engine.")
@click.option(
    "--repetitions",
    type=Number(int, 1, 100),
    default=5,
    show_default=True,
    help="Timed runs of each test.",
)
@click.option(
    "--budget",
    type=Number(float, 0, 3600),
    default=30.0,
    show_default=True,
    help="Seconds after which a test begins no further run.",
)
@machine_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw the figures, as .png or .svg.",
)
def command(
    model: str,
    engine: str,
    compare: bool,
    repetitions: int,
    budget: float,
    threads: int,
    isa: str | None,
    as_json: bool,
    picture: Path | None,
) -> int:
    """Measure how fast a model reads prompts (prefill) and answers (decode) here.

    Prompts of 128, 512 and 2048 made-up tokens, and answers behind 0, 1024 and 4096 tokens of
    context, as far as the model's context has room. Figures are medians; SPREAD is the slowest and
    the fastest run. OF THE ROOF is the share of what this machine can do at most: integer
    operations for prompts, reading memory for answers. Ctrl-C ends it and shows what is there.
    """
    if compare and engine != "auto":
        raise ArgumentError(
            f"--compare runs the native engine and llama.cpp: leave out --engine {engine}"
        )
    if picture is not None:
        bench_picture.check(picture)
    found = find_model(model, may_pull=False)
    line = output.ProgressLine()
    engines = ("native", "llama.cpp") if compare else (engine,)
    wish = Wish(engines, repetitions, budget, threads, isa)
    with Interrupts(exit_at_once) as interrupts, hints(found):
        figures = _measure(found, wish, line, interrupts)
    if as_json:
        output.emit(json.dumps(figures) + "\n")
    elif figures["tests"]:
        from localllm.cli.bench_report import table

        output.emit(table(figures))
    if picture is not None and figures["tests"]:
        bench_picture.draw(figures, picture)
        output.say(output.escape_line(f"{picture} written"))
    if figures["complete"]:
        return 0
    output.say(f"note: interrupted after {len(figures['tests'])} of {figures['n_tests']} tests")
    return EXIT_CODE


def _measure(
    found: Found, wish: Wish, line: output.ProgressLine, interrupts: Interrupts
) -> dict[str, Any]:
    """Loads the engines, runs all tests and returns the figures; fewer after a Ctrl-C."""
    from localllm.cli.bench_report import document
    from localllm.store.work import work_of

    about, n_ctx_train = _about(found)
    work = work_of(found.path)
    n_ctx = context_needed(DECODE_DEPTHS[-1], wish.repetitions)
    n_ctx = min(n_ctx, n_ctx_train) if n_ctx_train else n_ctx
    tests = cases_that_fit(n_ctx, wish.repetitions)
    if not tests:
        raise ArgumentError(f"the context of {n_ctx} tokens is too short to measure anything")
    line.draw("measuring the machine", force=True)
    machine = _machine(None)
    if machine.is_busy:
        line.clear()
        output.say(
            f"note: other programs are busy here (load {machine.load:.1f} on {machine.n_cpus} "
            "CPUs): the figures will be low and unsteady"
        )
    with contextlib.ExitStack() as stack:
        sessions: dict[str, Session] = {}
        facts = []
        for name in wish.engines:
            session, seen = _opened(found, name, n_ctx, wish, tests[0], line)
            stack.callback(session.close)
            sessions[session.info.engine] = session
            facts.append(seen)
        interrupts.first = lambda: _cancel(sessions)
        results: list[Result] = []
        with contextlib.suppress(CancelledError):
            for test in tests:
                results.append(run(sessions, test, wish.repetitions, wish.budget_s, _drawn(line)))
        complete = len(results) == len(tests)
        if complete:
            line.draw("measuring the machine", force=True)
            machine = _machine(machine)
        line.clear()
    figures = document(about, machine, facts, results, work, complete=complete)
    speed_notes.of_bench(figures, work, is_busy=machine.is_busy)
    return {**figures, "n_tests": len(tests)}


def _machine(before: Machine | None) -> Machine:
    """Measures the roofs. Something else may run meanwhile, which no roof is lower for: of two
    measurements the higher ones count."""
    import psutil

    from localllm.cli.bench_report import Machine
    from localllm.session import machine_facts, machine_roofs

    roofs = machine_roofs()
    if before is None:
        n_cpus, load = machine_facts().n_cpus, psutil.getloadavg()[0]
        return Machine(roofs.n_threads, roofs.read_gb_per_s, roofs.int8_gop_per_s, n_cpus, load)
    return dataclasses.replace(
        before,
        read_gb_per_s=max(before.read_gb_per_s, roofs.read_gb_per_s),
        int8_gop_per_s=max(before.int8_gop_per_s, roofs.int8_gop_per_s),
    )


def _opened(
    found: Found, engine: str, n_ctx: int, wish: Wish, test: Case, line: output.ProgressLine
) -> tuple[Session, EngineFacts]:
    """A session, and what loading it and a first run cost."""
    import psutil

    from localllm.cli.bench_report import EngineFacts
    from localllm.session import Session

    def notice(text: str) -> None:
        line.clear()
        output.say(f"note: {output.escape_line(text)}")

    process = psutil.Process()
    before = process.memory_info().rss
    session = Session.open(
        found.path,
        engine=engine,
        n_threads=wish.n_threads,
        isa=wish.isa,
        n_ctx=n_ctx,
        digest=found.digest,
        label=found.label,
        progress=lambda share: line.draw(f"loading {found.label} {share:4.0%}"),
        notice=notice,
    )
    line.draw(f"{session.info.engine}: first run", force=True)
    try:
        run({session.info.engine: session}, test, 1, 0.0, lambda text: None)
    except BaseException:
        session.close()
        raise
    info = session.info
    return session, EngineFacts(
        name=info.engine,
        load_s=round(session.stats.load_s, 6),
        isa=info.isa,
        n_threads=info.n_threads,
        n_ctx=info.n_ctx,
        weight_bytes=info.weight_bytes,
        kv_bytes=info.kv_bytes,
        resident_bytes=max(0, process.memory_info().rss - before),
    )


def _about(found: Found) -> tuple[dict[str, Any], int]:
    """What the report says of the model, and the context that it was trained on (0: unknown)."""
    from localllm.store.inspect import GgufFile

    with GgufFile(found.path) as file:
        trained = file.metadata.get(f"{file.architecture}.context_length")
        about = {
            "name": found.label,
            "path": str(found.path),
            "digest": found.digest,
            "architecture": file.architecture,
            "quantization": file.quantization,
            "n_params": file.n_params,
            "file_bytes": file.file_bytes,
        }
    return about, trained if isinstance(trained, int) else 0


def _drawn(line: output.ProgressLine) -> Callable[[str], None]:
    return lambda text: line.draw(text, force=True)


def _cancel(sessions: dict[str, Session]) -> None:
    for session in list(sessions.values()):
        session.cancel()
