"""A conversation as a model is asked with it: what is kept goes out as messages and parameters.

Nothing here knows of a terminal.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from localllm.attachments import attach, with_files
from localllm.params import GenerateParams
from localllm.tui.conversations.kinds import Attachment, Conversation, Message

if TYPE_CHECKING:
    from localllm.session import Stats
    from localllm.tui.opening import AnySession, Described

_MOST = 1e12  # of tokens and seconds
_KEPT_STATS = (
    "prompt_tokens",
    "cached_tokens",
    "prompt_s",
    "first_token_s",
    "generated_tokens",
    "reasoning_tokens",
    "decode_s",
)


def asked(
    conversation: Conversation, path: Iterable[Message], described: Described | None
) -> list[dict[str, Any]]:
    """The messages of a path, as a session takes them: before them the instructions that were
    given, or the model's own, and what comes with the model."""
    out: list[dict[str, Any]] = []
    system = conversation.system
    if system is None:
        system = described.system if described else ""
    if system:
        out.append({"role": "system", "content": system})
    if described:
        out += [dict(message) for message in described.messages]
    for message in path:
        files = [(each.name, each.text) for each in message.attachments if each.kind == "text"]
        pictures = [each.path for each in message.attachments if each.kind == "image"]
        row: dict[str, Any] = {
            "role": message.role,
            "content": with_files(message.content, files),
        }
        if message.reasoning:
            row["reasoning_content"] = message.reasoning
        if pictures:
            row["images"] = pictures
        out.append(row)
    return out


def taken_in(text: str) -> tuple[str, tuple[Attachment, ...]]:
    """What was typed, without the `@` of the files that it names, and these. Raises as
    `attachments.attach`."""
    found = attach(text)
    texts = [Attachment(name, "text", content) for name, content in found.files]
    pictures = [Attachment(path.rpartition("/")[2], "image", path=path) for path in found.pictures]
    return found.words.strip("\n"), (*texts, *pictures)


def parameters(
    conversation: Conversation,
    session: AnySession,
    described: Described | None,
    once: Mapping[str, Any],
) -> GenerateParams:
    """What was asked for in this conversation, else what comes with the model, else what its file
    recommends, else the defaults. Without a seed it is a new one. once: for this answer only."""
    given = {
        **session.info.recommended,
        **(described.sampling if described else {}),
        **conversation.params,
        **once,
    }
    return GenerateParams(**{"seed": secrets.randbits(32), **given})


def kept_figures(of: Stats) -> Mapping[str, Any]:
    """The counts of an answer that are kept with it."""
    stats = dataclasses.asdict(of)
    return {name: stats[name] for name in _KEPT_STATS if stats.get(name)}


def figures_of(stats: Mapping[str, Any]) -> list[str]:
    """The counts of an answer in words, those that are known."""
    figures = known(stats)
    out = []
    n, seconds = figures.get("generated_tokens", 0), figures.get("decode_s", 0.0)
    if n > 1 and seconds > 0:
        out.append(f"{n:,} tokens, {(n - 1) / seconds:.1f} tok/s")
    if first := figures.get("first_token_s"):
        out.append(f"first after {first:.2f} s")
    if cached := figures.get("cached_tokens"):
        out.append(f"{cached:,} cached")
    return out


def known(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The figures among what an answer has; a file that was imported may hold anything."""
    return {name: value for name, value in stats.items() if _is_figure(value)}


def _is_figure(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < _MOST


def last_question(path: Iterable[Message]) -> Message | None:
    """The last message of the user."""
    return next((each for each in reversed(list(path)) if each.role == "user"), None)
