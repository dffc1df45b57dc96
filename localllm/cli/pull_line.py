"""The line of a pull on a screen: a bar, and figures as far as the screen has room."""

from __future__ import annotations

from localllm.cli import output

_BAR_WIDTH = 12
_LONG = 11


def line(
    state: str,
    n_bytes: int,
    size: int | None,
    speed: float,
    left_s: float | None,
    file: str = "",
) -> str:
    """n_bytes, size: of all files; speed in bytes a second, 0 while unknown; left_s: seconds; file:
    which one of several. On a narrow screen the bar goes first, then what is least of use; a
    sentence on what is waited for stands behind the figures."""
    share = n_bytes / size if size else None
    of = "" if size is None else f" of {output.size_text(size)}"
    bar = percent = ""
    if share is not None:
        filled = int(share * _BAR_WIDTH)
        bar, percent = f"[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}]", f"{share:4.0%}"
    pace = f"{output.size_text(int(speed))}/s" if speed else ""
    left = f"{output.duration_text(left_s)} left" if left_s is not None else ""
    here = output.size_text(n_bytes)
    width = output.columns() - 1
    if len(state) > _LONG:  # a sentence, which may be cut at its end
        return "  ".join(part for part in (percent, here + of, state) if part)
    text = ""
    for parts in (
        (f"{state:11} {bar} {percent}".rstrip(), here + of, pace, left, file),
        (f"{state:11} {percent}".rstrip(), here + of, pace, left, file),
        (f"{state} {percent}".rstrip(), here + of, pace, left),
        (f"{state} {percent}".rstrip(), here, pace, left),
        (percent, here, left),
        (percent or here, left),
    ):
        text = "  ".join(part for part in parts if part)
        if output.cells_of(text) <= width:
            break
    return text
