"""The figures of `bench` as a picture. matplotlib comes with the extra `bench` and is loaded only
here."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, FileError, UnsupportedError

SUFFIXES = (".png", ".svg")
_INCHES = (9.0, 4.5)
_DPI = 150


def check(path: Path) -> None:
    """Refuses, before anything is measured, what could not be drawn. Raises `ArgumentError`,
    `FileError`, `UnsupportedError`."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(
            f"--picture: {path} ends in none of {', '.join(SUFFIXES)}",
            "The ending says which kind of picture is written.",
        )
    if not path.absolute().parent.is_dir():
        raise FileError(f"--picture: there is no folder {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "--picture needs matplotlib, which is not installed",
            "Install it with: pip install 'localllm[bench]'",
        )


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Bars of tokens per second with their spread, prompts on the left, answers on the right.
    Raises `FileError`."""
    # Text stays text in an SVG, and nothing in a name is taken for a formula.
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "localllm"}):
        figure = Figure(figsize=_INCHES, layout="constrained")
        figure.suptitle(_title(figures), parse_math=False)
        axes = figure.subplots(1, 2)
        for one, kind, title in zip(
            axes, ("prefill", "decode"), ("Reading the prompt", "Answering"), strict=True
        ):
            _bars(one, [t for t in figures["tests"] if t["kind"] == kind], title)
        try:
            figure.savefig(path, dpi=_DPI, metadata={"Date": None} if _is_svg(path) else None)
        except OSError as e:
            raise FileError(f"cannot write {path}: {e.strerror or e}") from e


def _title(figures: Mapping[str, Any]) -> str:
    model, machine = figures["model"], figures["machine"]
    isa = figures["engines"][0]["isa"]
    return f"{ascii(model['name'])[1:-1]}, {isa}, {machine['n_threads']} threads"


def _bars(axes: Any, tests: list[Mapping[str, Any]], title: str) -> None:
    axes.set_title(title)
    axes.set_ylabel("tokens per second")
    names = list(tests[0]["engines"]) if tests else []
    width = 0.8 / max(len(names), 1)
    for n, name in enumerate(names):
        speeds = [test["engines"][name] for test in tests]
        heights = [speed["median"] for speed in speeds]
        spread = [
            [speed["median"] - speed["min"] for speed in speeds],
            [speed["max"] - speed["median"] for speed in speeds],
        ]
        at = [i + n * width for i in range(len(tests))]
        drawn = axes.bar(at, heights, width * 0.95, yerr=spread, capsize=3, label=name)
        axes.bar_label(drawn, [f"{height:.3g}" for height in heights], padding=3)
    middle = width * (len(names) - 1) / 2
    axes.set_xticks([i + middle for i in range(len(tests))], [test["name"] for test in tests])
    axes.margins(y=0.15)
    if len(names) > 1:
        axes.legend()


def _is_svg(path: Path) -> bool:
    return path.suffix.lower() == ".svg"
