"""Pictures that messages carry: from paths in a conversation to ids in its prompt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.engine.engine import Engine
from localllm.errors import ArgumentError, ChatTemplateError
from localllm.text.prompt import Prompt

#: Noncharacters, which no text has: templates pass them through.
_MARK = re.compile("\ufdd0([0-9a-f]{16})\ufdd1")


@dataclass(frozen=True)
class PicturePrompt(Prompt):
    """A prompt with pictures where their marks stand in its text."""

    pictures: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by mark

    def ids(self, start: int = 0, end: int | None = None) -> list[int]:
        ids: list[int] = []
        for found in _MARK.finditer(self.text, start, len(self.text) if end is None else end):
            ids += super().ids(start, found.start())
            ids += self.pictures[found.group(1)]
            start = found.end()
        return ids + super().ids(start, end)


def take_pictures(
    messages: Sequence[Mapping[str, Any]], engine: Engine
) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """The messages with marks in place of their "images", which are paths, and the ids of each
    mark's picture. Raises what `Engine.picture_ids` does, `ArgumentError` for images that are no
    list of paths."""
    pictures: dict[str, list[int]] = {}
    out = []
    for message in messages:
        plain = {key: value for key, value in message.items() if key != "images"}
        paths, content = message.get("images") or (), plain.get("content")
        if isinstance(content, str):
            plain["content"] = content = _MARK.sub("", content)
        if isinstance(paths, str) or not all(isinstance(path, (str, Path)) for path in paths):
            raise ArgumentError("images must be a list of paths")
        if paths and not isinstance(content, str):
            raise ArgumentError("a message with images needs a text as its content")
        for path in paths:
            ids = engine.picture_ids(Path(path))
            mark = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
            pictures[mark] = ids
            plain["content"] = f"\ufdd0{mark}\ufdd1\n{plain['content']}"
        out.append(plain)
    return out, pictures


def with_pictures(prompt: Prompt, pictures: Mapping[str, Sequence[int]]) -> Prompt:
    """The prompt that the template made of marked messages. Raises `ChatTemplateError` if it left
    out a picture."""
    if not pictures:
        return prompt
    missing = len(set(pictures) - set(_MARK.findall(prompt.text)))
    if missing:
        raise ChatTemplateError(f"the chat template left out {missing} of the pictures")
    return PicturePrompt(
        prompt.source,
        prompt.tokenizer,
        prompt.repairs,
        prompt.opens_reasoning,
        prompt.goes_on,
        pictures,
    )
