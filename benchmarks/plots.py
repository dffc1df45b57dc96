"""Pictures of a run: the share of the roof of each weight type, r(n), and speed over depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row

FOLDER = Path(__file__).resolve().parent / "results" / "plots"
_COLUMNS = re.compile(r"matmul (\d+) columns?$")
_GROWTH = re.compile(r"r\((\d+)\), (.+)$")
_DEPTH = re.compile(r"(prefill \d+|decode)(?: at (\d+))?(?:, (\w+) KV)?$")
_CLIENTS = re.compile(r"serve, (\d+) clients?$")
_SHOWN_COLUMNS = (1, 8, 64, 512)


def draw(rows: Sequence[Row], folder: Path = FOLDER) -> list[Path]:
    """Writes a PNG for each picture that has rows; their paths. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    pictures: dict[str, Callable[[Any, Sequence[Row]], bool]] = {
        "share-of-roof": _share_of_roof,
        "step-growth": _step_growth,
        "speed-over-depth": _speed_over_depth,
        "speed-over-clients": _speed_over_clients,
    }
    for name, picture in pictures.items():
        figure = pyplot.figure(figsize=(7.5, 3.8), layout="constrained")
        if picture(figure, rows):
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=90, metadata={"Software": None})
        pyplot.close(figure)
    return written


def _share_of_roof(figure: Any, rows: Sequence[Row]) -> bool:
    """Bars: a group a weight type, a bar a column count."""
    shares: dict[int, dict[str, float]] = {}
    for row in rows:
        match = _COLUMNS.match(row.test)
        if match and row.share is not None and int(match[1]) in _SHOWN_COLUMNS:
            shares.setdefault(int(match[1]), {})[row.subject] = row.share
    if not shares:
        return False
    types = list(dict.fromkeys(t for by_type in shares.values() for t in by_type))
    axes = figure.add_subplot()
    width = 0.8 / len(shares)
    for i, (n, by_type) in enumerate(sorted(shares.items())):
        at = [types.index(t) + (i - (len(shares) - 1) / 2) * width for t in by_type]
        label = f"{n} column{'s' * (n > 1)}"
        axes.bar(at, [100 * share for share in by_type.values()], width, label=label)
    axes.set_xticks(range(len(types)), types, rotation=45, ha="right")
    axes.set_ylabel("% of the roof that binds")
    axes.set_title("Matrix products: share of read bandwidth, int8 or f32 rate")
    axes.axhline(100, color="gray", linewidth=0.8)
    axes.legend(fontsize="small", ncols=len(shares))
    return True


def _step_growth(figure: Any, rows: Sequence[Row]) -> bool:
    """Lines over n, a panel a form of step; a colour a model, the rival dashed."""
    lines: dict[str, dict[str, list[tuple[int, Row]]]] = {}
    for row in rows:
        match = _GROWTH.match(row.test)
        if match:
            by_model = lines.setdefault(match[2], {})
            by_model.setdefault(row.subject, []).append((int(match[1]), row))
    if not lines:
        return False
    all_axes = figure.subplots(1, len(lines), sharey=True, squeeze=False)[0]
    for axes, (form, by_model) in zip(all_axes, lines.items(), strict=True):
        for i, (model, points) in enumerate(by_model.items()):
            points.sort(key=lambda point: point[0])
            colour, n = f"C{i}", [at for at, _ in points]
            axes.plot(n, [row.ours for _, row in points], "o-", color=colour, ms=3, label=model)
            theirs = [(at, row.rival) for at, row in points if row.rival is not None]
            if theirs:
                axes.plot(*zip(*theirs, strict=True), "--", color=colour, alpha=0.6)
        axes.set_title("n tokens of one sequence" if form == "one sequence" else f"n {form}")
        axes.set_xlabel("n")
        axes.grid(alpha=0.3)
    all_axes[0].set_ylim(bottom=0)  # of both panels
    all_axes[0].set_ylabel("t(n) / t(1)   (dashed: llama.cpp)")
    all_axes[0].legend(fontsize="small")
    return True


def _speed_over_depth(figure: Any, rows: Sequence[Row]) -> bool:
    """Lines over depth, a panel for prefill and for decode; a colour a model and KV type."""
    lines: dict[str, dict[str, list[tuple[int, Row]]]] = {}
    for row in rows:
        match = _DEPTH.match(row.test)
        if match:
            by_model = lines.setdefault(match[1], {})
            label = f"{row.subject}, {match[3] or 'f16'} KV"
            by_model.setdefault(label, []).append((int(match[2] or 0), row))
    for what in [*lines]:  # a line needs two depths
        lines[what] = {m: points for m, points in lines[what].items() if len(points) > 1}
        if not lines[what]:
            del lines[what]
    if not lines:
        return False
    all_axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for axes, (what, by_model) in zip(all_axes, lines.items(), strict=True):
        for i, (model, points) in enumerate(by_model.items()):
            points.sort(key=lambda point: point[0])
            depths = [depth for depth, _ in points]
            axes.plot(
                depths, [row.ours for _, row in points], "o-", color=f"C{i}", ms=3, label=model
            )
            theirs = [(depth, row.rival) for depth, row in points if row.rival is not None]
            if theirs:
                axes.plot(*zip(*theirs, strict=True), "--", color=f"C{i}", alpha=0.6)
        axes.set_ylim(bottom=0)
        axes.set_title(what)
        axes.set_xlabel("tokens before it")
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("tokens per second   (dashed: llama.cpp)")
    all_axes[0].legend(fontsize="small")
    return True


def _speed_over_clients(figure: Any, rows: Sequence[Row]) -> bool:
    """Lines over the number of clients; a colour a model, the rival dashed."""
    lines: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        match = _CLIENTS.match(row.test)
        if match:
            lines.setdefault(row.subject, []).append((int(match[1]), row))
    if not lines:
        return False
    axes = figure.add_subplot()
    for i, (model, points) in enumerate(lines.items()):
        points.sort(key=lambda point: point[0])
        n = [at for at, _ in points]
        axes.plot(n, [row.ours for _, row in points], "o-", color=f"C{i}", ms=3, label=model)
        theirs = [(at, row.rival) for at, row in points if row.rival is not None]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), "o--", color=f"C{i}", ms=3, alpha=0.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 8, 32, 64], ["1", "8", "32", "64"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients")
    axes.set_ylabel("tokens of answers per second   (dashed: llama-server)")
    axes.set_title("Serving mixed prompts")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return True
