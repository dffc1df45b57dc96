"""`make bench`: roofs, ops, steps, whole models beside llama.cpp, start, memory, in one table.

Every row that is printed is also added, with the commit, to benchmarks/results/<machine>.csv as it
comes, so a run that is ended leaves what it has; --continue does the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import (
    chat,
    files,
    memory,
    ops,
    plots,
    pool,
    report,
    roofs,
    sampling,
    serving,
    speed,
    start,
    steps,
)
from benchmarks.pairs import RIVAL_SECONDS, RivalChoice
from benchmarks.progress import Begun, Piece, Progress, last_begun
from benchmarks.report import FAILED, Key, Row
from localllm.engine import machine
from localllm.errors import LocalLLMError

MODELS = (*files.REAL, "synthetic:1b:Q4_K_M")
DEEP = MODELS[-1]  # the only one that fills thousands of tokens unless --models names others
QUICK_TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q6_K")
QUICK_COLUMNS = (1, 4, 64)
MAX_NOTE_CHARS = 300
BEGUN = report.RESULTS / "run.json"  # the last run whose rows are kept
ENDED_BY_USER = 130


@dataclasses.dataclass
class Context:
    """What a section may use; `rival` gets the features of the build once it runs."""

    args: argparse.Namespace
    threads: roofs.Threads
    rival: RivalChoice

    def on_features(self, text: str) -> None:
        self.rival = dataclasses.replace(self.rival, features=text)


def _roofs(c: Context) -> Iterator[Piece]:
    yield _whole(roofs.keys(), lambda: roofs.measure(c.threads))


def _whole(keys: Iterable[Key], measure: Callable[[], Iterator[Row]]) -> Piece:
    """Rows that come only together."""
    return Piece(tuple(keys), lambda missing: measure())


def _ops(c: Context) -> Iterator[Piece]:
    for each in c.args.types:
        yield Piece(tuple(ops.keys(each, c.args.columns)), partial(_op, c, each))


def _op(c: Context, type_name: str, missing: Collection[Key]) -> Iterator[Row]:
    columns = [n for n in c.args.columns if set(ops.keys(type_name, [n])) & set(missing)]
    yield from ops.measure(
        c.threads, [type_name], columns, c.args.isa, c.args.pairs, c.rival, c.on_features
    )


def _sampling(c: Context) -> Iterator[Piece]:
    yield _whole(sampling.keys(), lambda: sampling.measure(20 if c.args.quick else 200))


def _steps(c: Context) -> Iterator[Piece]:
    args = c.args
    for name in args.models:
        for form in steps.FORMS:
            yield _whole(steps.keys(name, form, args.steps), partial(_form, c, name, form))


def _form(c: Context, name: str, form: str) -> Iterator[Row]:
    yield from steps.measure(
        name, files.path_of(name), c.threads, c.args.steps, c.args.pairs, c.rival, c.on_features,
        [form],
    )  # fmt: skip


def _speed(c: Context) -> Iterator[Piece]:
    args = c.args
    for name in args.models:
        plan = speed.Plan(
            args.prefill,
            args.decode,
            tuple(d for d in args.depths if d == 0 or args.deep in ("", name)),
            tuple(args.kv_types),
            tuple(args.batches),
        )
        yield Piece(tuple(speed.keys(name, plan)), partial(_model_speed, c, name, plan))


def _model_speed(
    c: Context, name: str, plan: speed.Plan, missing: Collection[Key]
) -> Iterator[Row]:
    yield from speed.measure(
        name, files.path_of(name), c.threads, plan, c.args.pairs, c.rival, c.on_features, missing
    )


def _memory(c: Context) -> Iterator[Piece]:
    for name in c.args.models:
        for kv_type in c.args.kv_types:
            yield _whole(memory.keys(name, kv_type), partial(_peaks, c, name, kv_type))


def _peaks(c: Context, name: str, kv_type: str) -> Iterator[Row]:
    yield from memory.measure(name, files.path_of(name), c.threads, c.rival, (kv_type,))


def _pool(c: Context) -> Iterator[Piece]:
    name = c.args.models[0]
    yield Piece(
        tuple(pool.keys(name)),
        lambda missing: pool.measure(name, files.path_of(name), c.args.pairs, missing=missing),
    )


def _serving(c: Context) -> Iterator[Piece]:
    setup = serving.Setup(
        c.args.threads, machine.facts().n_cpus, c.args.quick, wanted=c.rival.wanted
    )
    planned = [key for part in serving.keys(setup).values() for key in part]
    yield Piece(tuple(planned), lambda missing: serving.measure(setup, missing))


def _start(c: Context) -> Iterator[Piece]:
    yield Piece(
        tuple(start.keys()),
        lambda missing: start.measure(c.args.pairs, rival=c.rival.wanted, missing=missing),
    )


def _chat(c: Context) -> Iterator[Piece]:
    yield Piece(tuple(chat.keys()), chat.measure)


SECTIONS: dict[str, Callable[[Context], Iterator[Piece]]] = {
    "roofs": _roofs,
    "ops": _ops,
    "sampling": _sampling,
    "start": _start,
    "chat": _chat,
    "memory": _memory,
    "pool": _pool,
    "steps": _steps,
    "speed": _speed,
    "serving": _serving,
}


def _count(least: int, most: int) -> Callable[[str], int]:
    """The argparse type of a count."""

    def count(text: str) -> int:
        if not text.lstrip("-").isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:20]!r} is no number from {least} to {most}")
        return int(text)

    return count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:  # nan is no number of seconds either
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no number of seconds, of up to 1e6")
    return seconds


def _rival_folder(text: str) -> Path:
    folder = Path(text)
    if not any(
        each.is_file() for end in ("so", "dylib", "dll") for each in folder.glob(f"*llama.{end}")
    ):
        raise argparse.ArgumentTypeError(f"{text!r} holds no library of llama.cpp")
    return folder


def _model(text: str) -> str:
    try:
        files.check(text)
    except LocalLLMError as e:
        raise argparse.ArgumentTypeError(e.message) from None
    return text


def _fill_in(args: argparse.Namespace) -> None:
    """What was not given: its full value, or that of --quick."""
    args.deep = "" if args.models else DEEP
    for name, full, quick in (
        ("models", MODELS, (MODELS[0], MODELS[-1])),
        ("types", ops.TYPES, QUICK_TYPES),
        ("columns", ops.COLUMNS, QUICK_COLUMNS),
        ("steps", range(1, 17), (1, 2, 4, 8)),
        ("depths", (0, 4096, 8192), (0,)),
        ("kv_types", ("f16", "q8_0"), ("f16",)),
        ("batches", (1, 2, 4, 8, 16, 32), (1, 4)),
    ):
        if not getattr(args, name):
            setattr(args, name, list(quick if args.quick else full))
    if args.quick and not args.sections:
        args.sections = [name for name in SECTIONS if name not in ("start", "chat", "pool")]
    args.pairs = args.pairs or (3 if args.quick else 5)
    args.prefill = args.prefill or (256 if args.quick else 512)
    args.decode = args.decode or (16 if args.quick else 32)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments. Exits for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"of {', '.join(SECTIONS)}; all when none is named",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a first look")
    add(
        "--models",
        nargs="+",
        type=_model,
        metavar="NAME",
        help="catalogue names, synthetic:SHAPE:MIX or paths",
    )
    add("--types", nargs="+", choices=ops.TYPES)
    add("--columns", nargs="+", type=_count(1, 4096), metavar="N")
    add("--isa", choices=machine.facts().isas, help="instruction set of ops [the best]")
    add("--steps", nargs="+", type=_count(1, 512), metavar="N", help="tokens in a step, for r(n)")
    add(
        "--depths",
        nargs="+",
        type=_count(0, 1 << 20),
        metavar="N",
        help="tokens before a prefill or decode",
    )
    add("--kv-types", nargs="+", choices=("f16", "q8_0"))
    add(
        "--batches",
        nargs="+",
        type=_count(1, 256),
        metavar="N",
        help="sequences that decode side by side",
    )
    add("--threads", type=_count(0, 1024), default=0, help="0: the default of this machine")
    add("--pairs", type=_count(1, 1000), metavar="N", help="runs of each engine for a row")
    add("--prefill", type=_count(1, 1 << 16), metavar="TOKENS")
    add("--decode", type=_count(1, 1 << 16), metavar="TOKENS")
    add("--no-rival", action="store_true", help="our engine alone")
    add(
        "--rival-seconds",
        type=_seconds,
        default=RIVAL_SECONDS,
        metavar="S",
        help="what the rival may take for a row [%(default)g]",
    )
    add(
        "--rival",
        type=_rival_folder,
        metavar="FOLDER",
        help="lib folder of another llama-cpp-python build",
    )
    add("--json", action="store_true", help="JSON instead of the table")
    add("--plots", type=Path, metavar="FOLDER", help=f"PNG pictures (make bench: {plots.FOLDER})")
    add(
        "--continue",
        action="store_true",
        dest="go_on",
        help="the rest of the last run, with its arguments: same commit, begun within a day",
    )
    add("--no-csv", action="store_true", help="keep no row; pictures show this run alone")
    args = parser.parse_args(argv)
    if args.go_on and argv != ["--continue"]:
        parser.error("--continue takes the arguments of the run that was cut, and no others")
    _fill_in(args)
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    return args


def run_section(
    name: str, pieces: Iterable[Piece], progress: Progress, keep: Callable[[Row], object]
) -> tuple[list[Row], bool]:
    """The missing rows of a section, each kept as it comes, and whether it went through. What made
    it fail is in its last row."""
    rows: list[Row] = []
    begin = time.perf_counter()
    failed = ""
    try:
        for piece in pieces:
            if not (missing := progress.missing(name, piece)):
                continue
            for row in piece.measure(missing):
                rows.append(row)
                keep(row)
                progress.came(name, row)
                figure = "" if row.ours is None else f"{row.ours:.4g} {row.unit}"
                ratio = "" if row.ratio is None else f", {row.ratio:.2f}x"
                print(f"{row.test}, {row.subject}: {figure}{ratio}", file=sys.stderr)
                print(f"  {progress}", file=sys.stderr, flush=True)
    except Exception as e:  # whatever it is, the other sections shall run
        failed = f"{type(e).__name__}: {' '.join(str(e).split())}"[:MAX_NOTE_CHARS]
        rows.append(Row(f"section {name}", FAILED, "", None, note=failed))
        keep(rows[-1])
        progress.failed(name)
        print(f"error: section {name}: {failed}", file=sys.stderr)
    seconds = time.perf_counter() - begin
    print(f"section {name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return rows, not failed


def _begin(argv: list[str]) -> tuple[argparse.Namespace, list[Row]]:
    """The arguments of a run, and the rows of the one that it goes on with. Exits for wrong
    arguments, and where there is nothing to go on with."""
    args, rows = parse(argv), []
    commit = report.commit()
    if args.go_on:
        try:
            begun = last_begun(BEGUN, commit)
        except ValueError as e:
            sys.exit(f"error: nothing to continue: {e}")
        args = parse(begun.argv)
        rows = report.rows_since(report.csv_path(), begun.time, commit)
        print(f"goes on with: {' '.join(begun.argv) or 'all sections'}", file=sys.stderr)
    elif not args.no_csv:
        try:
            Begun(report.now(), commit, argv).write(BEGUN)
        except OSError as e:
            _not_kept(args, BEGUN, e)
    return args, rows


def _not_kept(args: argparse.Namespace, path: Path, e: OSError) -> None:
    """A run whose rows cannot be kept goes on without: the table at its end has them."""
    args.no_csv = True
    print(f"warning: rows are kept no more: {path}: {e.strerror}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    args, rows = _begin(sys.argv[1:] if argv is None else argv)
    if args.rival:  # llama-cpp-python reads it in every process that is started from here
        os.environ["LLAMA_CPP_LIB_PATH"] = str(args.rival.resolve())
    threads = roofs.Threads(args.threads)
    rival = RivalChoice(not args.no_rival, not args.quick, args.rival_seconds)
    context = Context(args, threads, rival)
    plan = {name: [*SECTIONS[name](context)] for name in args.sections or SECTIONS}
    progress = Progress(plan, [(row.test, row.subject) for row in rows])
    status = 0
    path: Path | None = report.csv_path() if rows else None

    def describe() -> report.Run:
        isa = args.isa or machine.facts().isa
        return report.describe_run(isa, threads.count, context.rival.features)

    def keep(row: Row) -> None:
        nonlocal path
        if args.no_csv:
            return
        try:
            path = report.append_csv(describe(), [row])
        except OSError as e:
            _not_kept(args, report.csv_path(), e)

    try:
        for name, pieces in plan.items():
            made, went_through = run_section(name, pieces, progress, keep)
            rows += made
            if not went_through:
                status = 1
    except KeyboardInterrupt:
        kept = "" if path is None else f"; rows are in {path}, and --continue does the rest"
        print(f"\nended with {progress}{kept}", file=sys.stderr)
        return ENDED_BY_USER
    rows = [*{(row.test, row.subject): row for row in rows}.values()]  # some came again
    print(report.as_json(describe(), rows) if args.json else report.table(rows))
    if path is not None:
        print(f"rows added to {path}", file=sys.stderr)
    if args.plots:
        for picture in plots.draw(rows if path is None else report.latest(path), args.plots):
            print(f"picture {picture}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
