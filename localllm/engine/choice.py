"""Which engine runs a model: ours wherever it can, else llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from localllm import native
from localllm.errors import UnsupportedError
from localllm.store.architecture import NATIVE
from localllm.store.inspect import GgufFile

T = TypeVar("T")

MAX_REASON_CHARS = 120


def either(
    ours: Callable[[], T], second: Callable[[], T], *, path: Path, say: Callable[[str], None]
) -> T:
    """What `ours` gives, or where the native engine refuses the model as one that it cannot run,
    `second`, with one line on why. It refuses after the header, before it reads the weights.

    Raises what they raise; if both refuse, an `UnsupportedError` with both reasons.
    """
    try:
        return ours()
    except UnsupportedError as e:
        why = why_not_native(path, e)
    try:
        opened = second()
    except UnsupportedError as e:
        raise UnsupportedError(f"{why}; {e}", e.hint) from e
    say(f"{why}: running it with llama.cpp")
    return opened


def why_not_native(path: Path, refusal: UnsupportedError) -> str:
    """Half a sentence on why the native engine refused a file. Raises the refusal itself if the
    file is none that any engine could read."""
    try:
        with GgufFile(path) as file:
            architecture, types = file.architecture, set(file.bytes_by_type())
    except UnsupportedError:
        raise refusal from None
    if architecture not in NATIVE:
        return f"{ascii(architecture[:40])[1:-1]} is not an architecture of the native engine"
    without_kernels = sorted(types & _types_without_kernels())
    if without_kernels:
        return f"the native engine computes with no {', '.join(without_kernels)} weights"
    reason = refusal.message.removeprefix(f"{path}: ")
    return reason if len(reason) <= MAX_REASON_CHARS else reason[:MAX_REASON_CHARS] + "..."


def _types_without_kernels() -> set[str]:
    info = native.ffi.new("llm_format_info *")
    names = set()
    for i in range(native.lib.llm_n_formats()):
        native.lib.llm_format_at(i, info)
        if not info.native:
            names.add(native.text(info.name))
    return names
