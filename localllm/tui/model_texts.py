"""What the screen of models says, as texts."""

from __future__ import annotations

from collections.abc import Sequence

from localllm.errors import LocalLLMError
from localllm.plain_text import escape_line, size_text
from localllm.tui.library import ModelRow
from localllm.tui.outlook import Outlook
from localllm.tui.widgets.live_bar import speed_text

_LONGEST_LINE = 500  # characters of a fact


def details_text(
    row: ModelRow, outlook: Outlook | None, facts: Sequence[tuple[str, str]] | None
) -> str:
    """What the pane says of a model."""
    lines = [row.name]
    if outlook is not None:
        lines.append(f"{outlook.fit}: {outlook.why}" if outlook.why else outlook.fit)
        if outlook.tokens_per_s:
            basis = f" ({outlook.basis})" if outlook.basis else ""
            lines.append(f"about {speed_text(outlook.tokens_per_s)} tokens/s{basis}")
    lines += ["reading ..."] if facts is None else [f"{title}: {text}" for title, text in facts]
    if outlook is not None and outlook.plans:
        lines.append("memory by context and KV type:")
        lines += [
            f"  {n_ctx:>7} {kv_type:>5} {size_text(n_bytes):>9} {'fits' if fits else 'too large'}"
            for n_ctx, kv_type, n_bytes, fits in outlook.plans
        ]
    return "\n".join(_clipped(escape_line(line)) for line in lines)


def _clipped(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


def error_text(e: LocalLLMError) -> str:
    return f"{e.message}. {e.hint}" if e.hint else e.message
