"""Which engine runs a model: ours wherever it can, else llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from localllm.errors import UnsupportedError
from localllm.store.architecture import NATIVE

T = TypeVar("T")


def either(
    native: Callable[[], T],
    second: Callable[[], T],
    *,
    architecture: str,
    say: Callable[[str], None],
) -> T:
    """What `native` gives, or where it refuses the model as one that it cannot run, `second`, with
    one line on why. The native engine refuses after it has read the header, before the weights.

    Raises what they raise; if both refuse, an `UnsupportedError` with both reasons.
    """
    try:
        return native()
    except UnsupportedError as e:
        why = str(e)
        if architecture and architecture not in NATIVE:
            why = f"{architecture} is not an architecture of the native engine"
    try:
        opened = second()
    except UnsupportedError as e:
        raise UnsupportedError(f"{why}; {e}", e.hint) from e
    say(f"{why}: running it with llama.cpp")
    return opened
