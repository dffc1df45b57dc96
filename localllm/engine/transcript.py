"""The exact tokens of a conversation so far, so that the next prompt repeats them.

A chat template writes the whole conversation anew for every turn, as text. The tokens of an earlier
answer are what the model sampled, which need not be what its text encodes to: the next prompt would
differ from the kept one there, and everything after would be computed again. So tokens are taken
over as far as the text is the same, and only the rest is encoded.

The same text is not enough: a user may write what was a control token of the template, or of the
model. So its control tokens must stand in the same places, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from localllm.text.prompt import Prompt
from localllm.text.tokenizer import Tokenizer


class Transcript:
    """The text and the tokens of the last prompt and its answer, with the places in both where one
    may be cut: the ends of prompts and of answers."""

    def __init__(self) -> None:
        self._text = ""
        self._controls: dict[int, int] = {}  # as `Prompt.control_tokens`, of the answer too
        self._template_only: frozenset[int] = frozenset()
        self._ids: list[int] = []
        self._places: list[tuple[int, int]] = []  # (characters, tokens), rising

    def document(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {
            "text": self._text,
            "controls": list(self._controls.items()),
            "ids": self._ids,
            "places": self._places,
        }

    @classmethod
    def restored(cls, document: Mapping[str, Any], prompt: Prompt) -> Transcript:
        """From a document, before a prompt of the same template. Raises KeyError, TypeError or
        ValueError for what is none."""
        made = cls()
        made._text = str(document["text"])
        made._controls = {int(i): int(token) for i, token in document["controls"]}
        made._ids = [int(token) for token in document["ids"]]
        made._places = [(int(i), int(n)) for i, n in document["places"]]
        made._template_only = prompt.source.template_only
        return made

    def ids_of(self, prompt: Prompt) -> list[int]:
        """The prompt's tokens, and from now on the transcript ends with it."""
        while self._places and not self._fits(self._places[-1][0], prompt):
            self._places.pop()
        n_characters, n_ids = self._places[-1] if self._places else (0, 0)
        ids = [*self._ids[:n_ids], *prompt.ids(n_characters)]
        self._text, self._controls, self._ids = prompt.text, dict(prompt.control_tokens), ids
        self._template_only = prompt.source.template_only
        self._places.append((len(prompt.text), len(ids)))
        return list(ids)

    def _fits(self, place: int, prompt: Prompt) -> bool:
        """Whether the tokens before a place are those of the prompt, too, and what comes after it
        is encoded the same alone: nothing, or what begins with a control token."""
        text, controls = prompt.text, prompt.control_tokens
        if not text.startswith(self._text[:place]):
            return False
        if _before(place, controls) != _before(place, self._controls):
            return False
        return place == len(text) or place in controls

    def add_answer(self, token_ids: Iterable[int], tokenizer: Tokenizer) -> None:
        """Adds what the model said, without the token that ended it: the template writes that."""
        ids = list(token_ids)
        if ids and ids[-1] in tokenizer.stop_ids:
            ids.pop()
        for control, run in itertools.groupby(ids, key=self._template_only.__contains__):
            tokens = list(run)
            if control:
                for token in tokens:
                    self._controls[len(self._text)] = token
                    self._text += _text_of([token], tokenizer)
            else:
                self._text += _text_of(tokens, tokenizer)
        self._ids += ids
        self._places.append((len(self._text), len(self._ids)))


def _before(place: int, controls: Mapping[int, int]) -> dict[int, int]:
    return {i: token for i, token in controls.items() if i < place}


def _text_of(ids: Iterable[int], tokenizer: Tokenizer) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
