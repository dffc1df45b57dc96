"""Figures of `bench` as a JSON document, and that document as a table."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.cli import output
from localllm.cli.bench_runs import DECODE_TOKENS, Result
from localllm.cli.table import Column, render, screen_width
from localllm.store.work import Work

#: From this share of the CPUs on, other programs are in the way.
BUSY_SHARE = 0.25
_BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Machine:
    """What the machine can do at most, and how busy it was before the measurement."""

    n_threads: int
    read_gb_per_s: float
    int8_gop_per_s: float
    n_cpus: int
    load: float  # processes that were running or wanted to, on average over the last minute

    @property
    def is_busy(self) -> bool:
        return self.load > BUSY_SHARE * self.n_cpus


@dataclass(frozen=True)
class EngineFacts:
    """What was seen of an engine while it loaded and ran."""

    name: str
    load_s: float
    isa: str
    n_threads: int
    n_ctx: int
    weight_bytes: int
    kv_bytes: int  # reserved for n_ctx tokens
    resident_bytes: int  # by which loading and a first run made the process grow


def document(
    model: Mapping[str, Any],
    machine: Machine,
    engines: Sequence[EngineFacts],
    results: Sequence[Result],
    work: Work,
    *,
    complete: bool,
) -> dict[str, Any]:
    """All figures, as `--json` prints them. Speeds are medians in tokens per second; ratios are
    medians of the pairs, above 1 where the first engine is faster."""
    return {
        "model": dict(model),
        "machine": {
            "n_threads": machine.n_threads,
            "read_gb_per_s": round(machine.read_gb_per_s, 3),
            "int8_gop_per_s": round(machine.int8_gop_per_s, 3),
            "n_cpus": machine.n_cpus,
            "load": round(machine.load, 2),
        },
        "engines": [vars(facts) for facts in engines],
        "tests": [_test(result, machine, engines, work) for result in results],
        "complete": complete,
    }


def _test(
    result: Result, machine: Machine, engines: Sequence[EngineFacts], work: Work
) -> dict[str, Any]:
    test = result.test
    first, *others = [facts.name for facts in engines]
    return {
        "name": test.name,
        "kind": test.kind,
        "n_tokens": test.n_timed,
        "depth": 0 if test.kind == "prefill" else test.n_tokens,
        "roof": "int8" if test.kind == "prefill" else "memory",
        "engines": {
            facts.name: {
                **_spread(result.speeds(facts.name)),
                "seconds": [round(s, 6) for s in result.seconds[facts.name]],
                "share_of_roof": round(_share(result, facts, machine, work), 4),
            }
            for facts in engines
        },
        "ratios": {other: _spread(result.ratios(first, other)) for other in others},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "runs": len(values),
    }


def _share(result: Result, facts: EngineFacts, machine: Machine, work: Work) -> float:
    """How much of the machine's roof the matrices (and for decode the keys and values that are
    read) took up. Attention's own operations are not counted."""
    test, seconds = result.test, statistics.median(result.seconds[facts.name])
    if test.kind == "prefill":
        operations = test.n_tokens * work.layer_ops + work.head_ops
        return operations / seconds / (machine.int8_gop_per_s * 1e9)
    n_runs = len(result.seconds[facts.name])
    depth = test.n_tokens + DECODE_TOKENS * (1 + n_runs / 2)
    kv = facts.kv_bytes * depth / facts.n_ctx
    return DECODE_TOKENS * (work.step_bytes + kv) / seconds / (machine.read_gb_per_s * 1e9)


def table(figures: Mapping[str, Any]) -> str:
    """The figures for people. Bars show the share of the roof."""
    text = _head(figures)
    names = [engine["name"] for engine in figures["engines"]]
    columns = [
        Column("TEST"),
        Column("ENGINE"),
        Column("TOKENS/S", right=True),
        Column("SPREAD", right=True),
        Column("RATIO", right=True),
        Column("OF THE ROOF"),
    ]
    rows = []
    for test in figures["tests"]:
        for n, name in enumerate(names):
            speed = test["engines"][name]
            share = speed["share_of_roof"]
            rows.append(
                [
                    test["name"] if n == 0 else "",
                    name,
                    _figure(speed["median"]),
                    f"{_figure(speed['min'])} to {_figure(speed['max'])}",
                    _ratio(test, n),
                    f"{share:4.0%} {test['roof']:6} {bar(share, fancy=shows_bars())}".rstrip(),
                ]
            )
    kept = [i for i in range(len(columns)) if len(names) > 1 or i not in (1, 4)]
    shown = [[row[i] for i in kept] for row in rows]
    return text + render([columns[i] for i in kept], shown, screen_width())


def _head(figures: Mapping[str, Any]) -> str:
    model, machine = figures["model"], figures["machine"]
    rows = {
        "model": f"{model['name']}, {model['architecture']} {model['quantization']}, "
        f"{output.count_text(model['n_params'])} parameters, "
        f"{output.size_text(model['file_bytes'])}",
        "machine": f"{machine['n_threads']} threads, reads {machine['read_gb_per_s']:.1f} GB/s, "
        f"int8 {machine['int8_gop_per_s']:.0f} Gop/s",
    }
    for engine in figures["engines"]:
        rows[engine["name"]] = (
            f"{engine['isa']}, loaded in {engine['load_s']:.2f} s, "
            f"{output.size_text(engine['resident_bytes'])} in memory, "
            f"context {engine['n_ctx']} tokens ({output.size_text(engine['kv_bytes'])} reserved)"
        )
        firsts = [
            f"{statistics.median(test['engines'][engine['name']]['seconds']):.3f} s after "
            f"{test['n_tokens']}"
            for test in figures["tests"]
            if test["kind"] == "prefill"
        ]
        if firsts:
            rows[f"{engine['name']} first token"] = ", ".join(firsts) + " tokens of prompt"
    width = max(map(len, rows))
    lines = [f"{name:{width}}  {output.escape_line(text)}\n" for name, text in rows.items()]
    return "".join(lines) + "\n"


def _ratio(test: Mapping[str, Any], n: int) -> str:
    """On the row of the first engine: how many times as fast it was as the other one."""
    if n > 0:
        return ""
    pairs = test["ratios"].values()
    return "; ".join(f"{r['median']:.2f}x ({r['min']:.2f} to {r['max']:.2f})" for r in pairs)


def _figure(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}" if speed >= 10 else f"{speed:.2f}"


def bar(share: float, *, fancy: bool) -> str:
    """A bar of at most 20 cells: in eighths of a cell, or plain."""
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_CELLS * 8)
    if not fancy:
        return "#" * round(eighths / 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def shows_bars() -> bool:
    """Whether stdout is a screen that shows more than ASCII, and the user wants it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or screen_width() is None:
        return False
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
