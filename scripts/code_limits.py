"""Guards the speed of the kernels without a timer: counts against stored limits.

Usage: code_limits.py [--refresh] BUILD_FOLDER...

Executed instructions of the scalar and AVX2 ops (callgrind), and for the other instruction sets the
code in loops and the spills there. Limits are scripts/limits/<compiler>.csv: another version of a
compiler makes other code, so one without a file is left out. --refresh writes today's counts.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
from pathlib import Path

import executed
import loop_code
from stages import ROOT

LIMITS = ROOT / "scripts" / "limits"
SLACK = {"executed": 0.03, "loop code": 0.03, "spills": 0.0}
_FEW = 2  # instructions that a small function may gain whatever the share
_COMPILER = re.compile(r"^CMAKE_C_COMPILER:\w+=(.+)$", re.MULTILINE)
Counts = dict[tuple[str, str, str], int]


def compiler_key(build: Path) -> str:
    """`gcc-12-x86_64`, `clang-14-aarch64`. Raises FileNotFoundError, CalledProcessError."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    match = _COMPILER.search(cache)
    if match is None:
        raise FileNotFoundError(f"{build}/CMakeCache.txt names no C compiler")

    def ask(option: str) -> str:
        done = subprocess.run([match[1], option], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    kind = "clang" if "clang" in ask("--version") else "gcc"
    return f"{kind}-{ask('-dumpversion').split('.')[0]}-{ask('-dumpmachine').split('-')[0]}"


def measure(build: Path) -> Counts:
    """All counts of a build that is up to date."""
    counts = loop_code.count(build, executed.ISAS)
    if not compiler_key(build).endswith("aarch64"):
        counts |= executed.count(build)
    return counts


def read(path: Path) -> Counts:
    with path.open(newline="", encoding="utf-8") as f:
        return {
            (row["isa"], row["where"], row["measure"]): int(row["limit"])
            for row in csv.DictReader(f)
        }


def write(path: Path, counts: Counts) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(("isa", "where", "measure", "limit"))
        writer.writerows((*key, n) for key, n in sorted(counts.items()))


def violations(counts: Counts, limits: Counts) -> list[str]:
    """One line for each count above its limit and the slack, and for each that has none."""
    problems = []
    for key, n in sorted(counts.items()):
        isa, where, what = key
        if key not in limits:
            problems.append(f"{isa}, {where}: {n} {what}, no limit is stored")
            continue
        limit, slack = limits[key], SLACK[what]
        if n > max(limit * (1 + slack), limit + (_FEW if slack else 0)):
            more = f"+{n / limit - 1:.1%}" if limit else f"+{n}"
            problems.append(f"{isa}, {where}: {n} {what}, the limit is {limit} ({more})")
    gone = sorted(limits.keys() - counts.keys())
    problems += [f"{isa}, {where}: {what} is in the table, not in the build"
                 for isa, where, what in gone]  # fmt: skip
    return problems


def check(build: Path, refresh: bool) -> int:
    """Checks or refreshes one build folder; the exit status."""
    key = compiler_key(build)
    path = LIMITS / f"{key}.csv"
    if refresh:
        subprocess.run(["cmake", "--build", str(build)], check=True, stdout=subprocess.DEVNULL)
        counts = measure(build)
        write(path, counts)
        print(f"{len(counts)} limits written to {path.relative_to(ROOT)}")
        return 0
    if not path.exists():
        print(f"no limits for {key}: left out")
        return 0
    problems = violations(measure(build), read(path))
    if problems:
        print("\n".join(problems))
        print(
            f"{len(problems)} limits of {path.relative_to(ROOT)} are exceeded or out of date\n"
            "hint: if the change is meant, write today's counts and look at the difference: "
            f".venv/bin/python scripts/code_limits.py --refresh {build}"
        )
    return 1 if problems else 0


def main() -> int:
    """1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", nargs="+", type=Path, metavar="BUILD_FOLDER")
    parser.add_argument("--refresh", action="store_true", help="write today's counts as the limits")
    args = parser.parse_args()
    return max(check(build, args.refresh) for build in args.builds)


if __name__ == "__main__":
    sys.exit(main())
