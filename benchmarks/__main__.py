"""`make bench`: roofs, the op table, sampling, and whole models beside llama.cpp, in one table.

Every row that is printed is also added, with the commit, to benchmarks/results/<machine>.csv.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import files, ops, report, sampling, speed
from localllm.engine import machine

SECTIONS = ("roofs", "ops", "sampling", "speed")
MODELS = (*files.REAL, "synthetic:1b:Q4_K_M")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"of {', '.join(SECTIONS)}; all when none is named",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=list(MODELS),
        metavar="NAME",
        help="catalogue names, synthetic:SHAPE:MIX or paths",
    )
    parser.add_argument("--types", nargs="+", default=list(ops.TYPES), choices=ops.TYPES)
    parser.add_argument("--columns", nargs="+", type=int, default=list(ops.COLUMNS))
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        default=[1],
        metavar="N",
        help="sequences that decode side by side",
    )
    parser.add_argument("--threads", type=int, default=0, help="0: the default of this machine")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512, metavar="TOKENS")
    parser.add_argument("--decode", type=int, default=32, metavar="TOKENS")
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="a picture of the paired ratios")
    parser.add_argument("--no-csv", action="store_true", help="keep no row")
    args = parser.parse_args(argv)
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    return args


def measure(
    args: argparse.Namespace, threads: ops.Threads, rival: list[str]
) -> Iterator[report.Row]:
    """Yields all rows that were asked for; the rival's CPU features go into `rival`."""
    sections = args.sections or SECTIONS
    if "roofs" in sections:
        yield report.Row("roof", "read of 1 GiB", "GB/s", threads.read_gb_per_s())
        for isa in machine.facts().isas:
            yield report.Row("roof", f"int8 dot, {isa}", "Gop/s", threads.int8_gop_per_s(isa))
    if "ops" in sections:
        yield from ops.measure(threads, args.types, args.columns)
    if "sampling" in sections:
        yield from sampling.measure()
    if "speed" in sections:
        wanted = speed.tests(args.prefill, args.decode, args.batches)
        for name in args.models:
            path = files.path_of(name)
            yield from speed.measure(name, path, threads, wanted, args.pairs, rival.append)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    threads = ops.Threads(args.threads)
    rows: list[report.Row] = []
    rival: list[str] = []
    status = 0
    try:
        for row in measure(args, threads, rival):
            rows.append(row)
            figure = f"{row.test}, {row.subject}: {row.ours:.4g} {row.unit}"
            ratio = "" if row.ratio is None else f", {row.ratio:.2f}x"
            print(figure + ratio, file=sys.stderr, flush=True)
    except RuntimeError as e:
        print(f"error: {e}", file=sys.stderr)
        status = 1
    if not rows:
        return status
    run = report.describe_run(machine.facts().isa, threads.count, rival[-1] if rival else "")
    print(report.as_json(run, rows) if args.json else report.table(rows))
    if not args.no_csv:
        print(f"rows added to {report.append_csv(run, rows)}", file=sys.stderr)
    if args.plot:
        report.plot(rows, args.plot)
    return status


if __name__ == "__main__":
    sys.exit(main())
