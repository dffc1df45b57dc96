"""Making a prompt fit, if the request asks for that: what goes, and how much it was.

Nothing is ever cut unasked. "start" gives up the oldest turns behind the system prompt, "middle"
keeps the first turn too, which often says what the conversation is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from localllm.errors import ContextFullError
from localllm.text.prompt import Prompt

SIDES = ("start", "middle")
CHARS_PER_TOKEN, LEAST_MOST_CHARS = 16, 1 << 18
_SYSTEM_ROLES = ("system", "developer")

Message = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Cut:
    """What was given up."""

    side: str
    n_messages: int
    n_tokens: int

    def document(self) -> dict[str, Any]:
        return {"side": self.side, "messages": self.n_messages, "tokens": self.n_tokens}

    def header(self) -> str:
        return f"{self.side}; messages={self.n_messages}; tokens={self.n_tokens}"


@dataclass(frozen=True)
class Fitted(Generic[T]):
    value: T
    cut: Cut | None


def most_chars(n_ctx: int) -> int:
    """Of a text that is encoded at once."""
    return max(LEAST_MOST_CHARS, CHARS_PER_TOKEN * n_ctx)


def n_tokens(prompt: Prompt, n_ctx: int) -> int:
    """Of a prompt; of one that is far too long, counted in parts, and so a few too many."""
    step = most_chars(n_ctx)
    if len(prompt.text) <= step:
        return len(prompt.ids())
    return sum(len(prompt.ids(i, i + step)) for i in range(0, len(prompt.text), step))


def check_length(text: str, n_ctx: int) -> None:
    """Token ids take a hundred times the memory of a text while they are made. Raises
    `ContextFullError` for a text that is far from any that fits."""
    limit = most_chars(n_ctx)
    if len(text) > limit:
        raise ContextFullError(
            f"the text has {len(text):,} characters, at most {limit:,} are read for a context of "
            f"{n_ctx:,} tokens"
        )


def room(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens that a prompt may have so that the answer has its own: all of max_tokens, or a
    quarter of the context."""
    return max(1, n_ctx - max(1, n_ctx // 4 if max_tokens is None else max_tokens))


def fit_messages(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], T],
    count: Callable[[T], int],
    limit: int,
    side: str,
) -> Fitted[T]:
    """The most of the newest turns whose rendering has at most `limit` tokens. A turn begins with
    a user's message; the last one always stays. Raises `ContextFullError` if it alone does not fit,
    and what `render` raises."""
    whole = render(messages)
    n_whole = count(whole)
    if n_whole <= limit:
        return Fitted(whole, None)
    n_head = next(
        (i for i, each in enumerate(messages) if each.get("role") not in _SYSTEM_ROLES), 0
    )
    starts = [i for i, each in enumerate(messages) if i > n_head and each.get("role") == "user"]
    if side == "middle" and starts:
        n_head, starts = starts[0], starts[1:]
    best: tuple[int, T, int] | None = None
    low, high = 0, len(starts) - 1  # the first start that fits; later ones fit all the more
    step = 1  # as long as all fit, twice as far back each time: little more than fits is rendered
    while low <= high:
        at = max(low, high + 1 - step) if step else (low + high) // 2
        rendering = render([*messages[:n_head], *messages[starts[at] :]])
        n_tokens = count(rendering)
        if n_tokens <= limit:
            best, high, step = (starts[at], rendering, n_tokens), at - 1, 2 * step
        else:
            low, step = at + 1, 0
    if best is None:
        raise ContextFullError(
            f"the prompt is too long: it has {n_whole} tokens, and its newest turn alone has more "
            f"than the {limit} that there is room for"
        )
    start, rendering, n_tokens = best
    return Fitted(rendering, Cut(side, start - n_head, n_whole - n_tokens))


def fit_ids(ids: list[int], limit: int, side: str, bos_id: int | None) -> Fitted[list[int]]:
    """Token ids of a text, at most `limit` of them. The token that begins a text stays."""
    if len(ids) <= limit:
        return Fitted(ids, None)
    n_first = limit // 2 if side == "middle" else int(bool(ids) and ids[0] == bos_id)
    n_first = min(n_first, limit - 1)
    kept = ids[:n_first] + ids[len(ids) - (limit - n_first) :]
    return Fitted(kept, Cut(side, 0, len(ids) - len(kept)))
