"""Rows of figures: a table for the eye, JSON, and a CSV file that keeps every speed claim."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path

from localllm.engine import machine

RESULTS = Path(__file__).resolve().parent / "results"
Key = tuple[str, str]  # test and subject of a row
FAILED = "failed"  # subject of the row that says why a section failed


@dataclass(frozen=True)
class Row:
    """One figure. Rates are in `unit`; share is that of the roof named by `roof`."""

    test: str  # "prefill 512"
    subject: str  # a model or a weight type
    unit: str  # "tok/s", "GB/s"
    ours: float | None  # None: there is only a note
    rival: float | None = None
    ratio: float | None = None  # median of the paired ratios, ours to the rival's
    ratio_low: float | None = None
    ratio_high: float | None = None
    n_pairs: int = 0
    roof: str = ""  # "read GB/s", "int8 Gop/s"
    roof_value: float | None = None
    share: float | None = None
    rival_variant: str = ""  # the options that were fastest for the rival
    note: str = ""  # why there is no ratio, or one of fewer pairs


@dataclass(frozen=True)
class Run:
    """What all rows of a run share."""

    time: str
    commit: str
    machine: str
    isa: str
    n_threads: int
    rival_build: str = ""  # instruction sets that the rival was compiled for


def describe_run(isa: str, n_threads: int, rival_build: str) -> Run:
    return Run(
        now(), commit(), machine_name(), isa,
        n_threads, rival_build,
    )  # fmt: skip


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str:
    """What the loaded engine was built from, and the checkout's commit where that is another:
    its Python ran."""
    root = Path(__file__).resolve().parent.parent

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    source = machine.facts().source
    dirty = "+dirty" if git("status", "--porcelain", "--", "localllm") else ""
    checkout = git("rev-parse", "--short", "HEAD") + dirty
    return source if checkout in ("", source) else f"{source}; Python {checkout}"


def machine_name() -> str:
    """The CPU's model name as a file name, such as intel-xeon-platinum-8481c."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields: dict[str, str] = {}
        for line in cpuinfo.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        name = fields.get("model name", name)
        if "model" in fields and not re.search(r"\d{3}", name):  # a hypervisor hides the name
            name += f" family {fields.get('cpu family', '')} model {fields['model']}"
    name = re.sub(r"\((R|TM|r|tm)\)|@.*|\bCPU\b|\bProcessor\b", " ", name)
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def table(rows: Sequence[Row]) -> str:
    """One table, a line a row."""
    head = ("test", "subject", "ours", "rival", "ratio", "(range)", "share of roof", "rival ran as")
    lines = [head]
    for r in rows:
        spread = "" if r.ratio_low is None else f"{r.ratio_low:.2f}..{r.ratio_high:.2f}"
        roof = "" if r.roof_value is None else f"of {r.roof_value:.4g} {r.roof}"
        lines.append((
            r.test, r.subject, "" if r.ours is None else f"{r.ours:.4g} {r.unit}",
            "" if r.rival is None else f"{r.rival:.4g}",
            "" if r.ratio is None else f"{r.ratio:.2f}x", spread,
            roof if r.share is None else f"{r.share:4.0%} {roof}",
            "; ".join(filter(None, (r.rival_variant, r.note))),
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def columns() -> list[str]:
    """The header of the CSV files."""
    return [f.name for kind in (Run, Row) for f in fields(kind)]


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a file as text; columns that an older file lacks are empty. Lines that a full
    disk or a kill cut are left out."""
    with path.open(newline="", encoding="utf-8") as f:
        lines = csv.reader(f)
        head = next(lines, [])
        whole = (dict(zip(head, line, strict=True)) for line in lines if len(line) == len(head))
        return [dict.fromkeys(columns(), "") | row for row in whole]


def csv_path() -> Path:
    """The file that has the rows of this machine."""
    return RESULTS / f"{machine_name()}.csv"


def append_csv(run: Run, rows: Sequence[Row], folder: Path = RESULTS) -> Path:
    """Adds the rows to <machine>.csv, with the commit in each; the path of the file. A file with an
    older header gets today's."""
    path = folder / f"{run.machine}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists() or not _is_todays(path):
        partial = path.with_suffix(".partial")
        _write(partial, "w", read_csv(path) if path.exists() else [], header=True)
        partial.replace(path)
    _write(path, "a", [{k: _cell(v) for k, v in (asdict(run) | asdict(r)).items()} for r in rows])
    return path


def _is_todays(path: Path) -> bool:
    with path.open(newline="", encoding="utf-8") as f:
        return next(csv.reader(f), []) == columns()


def _write(path: Path, mode: str, cells: Sequence[dict[str, str]], *, header: bool = False) -> None:
    """All lines in one write, so that a run that is killed leaves whole ones; a disk that is full
    leaves none of them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(cells)
    had = path.stat().st_size if mode == "a" else 0
    try:
        with path.open(f"{mode}b") as f:
            f.write(b"\n" * _is_cut(path) + text.getvalue().encode())
    except OSError:
        os.truncate(path, had)
        raise


def _is_cut(path: Path) -> bool:
    """Whether the last line has no end."""
    with path.open("rb") as f:
        f.seek(max(0, path.stat().st_size - 1))
        return f.read() not in (b"", b"\n")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)


def latest(path: Path) -> list[Row]:
    """The newest row of each test and subject in a CSV file, of the commit, the instruction set and
    the number of threads that ran last: others do not belong into one picture."""
    rows = read_csv(path)
    newest: dict[tuple[str, str], Row] = {}
    for cells in rows:
        if any(cells[of] != rows[-1][of] for of in ("commit", "isa", "n_threads")):
            continue
        newest.pop((cells["test"], cells["subject"]), None)
        newest[cells["test"], cells["subject"]] = _row(cells)
    return list(newest.values())


def rows_since(path: Path, time: str, commit: str) -> list[Row]:
    """The newest row of each test and subject of one commit since a moment of ISO 8601 in UTC;
    notes that a section failed are left out."""
    newest: dict[Key, Row] = {}
    for cells in read_csv(path) if path.exists() else []:
        if cells["time"] >= time and cells["commit"] == commit and cells["subject"] != FAILED:
            newest[cells["test"], cells["subject"]] = _row(cells)
    return list(newest.values())


def _row(cells: dict[str, str]) -> Row:
    values: dict[str, object] = {}
    for f in fields(Row):
        text = cells[f.name]
        if "str" in str(f.type):
            values[f.name] = text
        elif "int" in str(f.type):
            values[f.name] = int(text or 0)
        else:
            values[f.name] = float(text) if text else None
    return Row(**values)  # type: ignore[arg-type]


def as_json(run: Run, rows: Sequence[Row]) -> str:
    return json.dumps({"run": asdict(run), "rows": [asdict(r) for r in rows]}, indent=1)
