"""The exact tokens of conversations so far, so that the next prompt repeats them.

A chat template writes the whole conversation anew for every turn, as text. The tokens of an earlier
answer are what the model sampled, which need not be what its text encodes to: the next prompt would
differ from the kept one there, and everything after would be computed again. So tokens are taken
over as far as the text is the same, and only the rest is encoded.

The same text is not enough: a user may write what was a control token of the template, or of the
model. So its control tokens must stand in the same places, too.

What is known are places: the ends of prompts and of answers, and where the last words of a prompt
begin, which call for the answer. A place's name is a hash of all text and all control tokens before
it; it holds the tokens since the place before. The ends of answers lie on the disk, too, each with
all tokens before it, and under other names the places that call for these answers.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from localllm.engine.transcript_files import TranscriptFiles
from localllm.text.prompt import Prompt
from localllm.text.tokenizer import Tokenizer

MAX_BYTES = 16 << 20
"""Of all conversations together."""
PLACE_BYTES = 640
"""What a place takes beside its tokens: short answers are mostly this."""


class _Text:
    """The hash of a text and of the control tokens in it, which grows at its end."""

    def __init__(self, salt: bytes) -> None:
        self._text, self._controls = blake2b(salt, digest_size=32), blake2b(digest_size=32)
        self.n_characters = 0

    def copy(self) -> _Text:
        other = _Text.__new__(_Text)
        other._text, other._controls = self._text.copy(), self._controls.copy()
        other.n_characters = self.n_characters
        return other

    def add(self, text: str) -> None:
        self._text.update(text.encode("utf-8", "surrogatepass"))
        self.n_characters += len(text)

    def add_control(self, token: int) -> None:
        """A control token begins here; its text is to be added, too."""
        self._controls.update(b"%d at %d;" % (token, self.n_characters))

    def name(self) -> bytes:
        return self._text.digest() + self._controls.digest()


@dataclass
class _Place:
    parent: bytes  # b"": none
    ids: array[int]  # since the parent
    was_answered: bool = False  # what the template writes here calls for an answer, and one came

    @property
    def n_bytes(self) -> int:
        return PLACE_BYTES + self.ids.itemsize * len(self.ids)


@dataclass(frozen=True)
class Transcribed:
    """A prompt's tokens, and its end, which the answer is added to.

    changed_at: how many tokens of it were taken over, where an answer that we gave after them has
    come back with another text; None where none has.
    """

    prompt: Prompt
    ids: tuple[int, ...]
    changed_at: int | None
    _text: _Text
    _model: str = ""


class Transcripts:
    """For any thread. The least recently used go first once they take more than `max_bytes`.
    files: where answers of models with a digest are kept, too."""

    def __init__(self, max_bytes: int = MAX_BYTES, files: TranscriptFiles | None = None) -> None:
        self._max_bytes, self._files = max_bytes, files
        self._n_bytes = 0
        #: Least recently used first; a child before its parent.
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        self._lock = threading.Lock()

    def ids_of(
        self, prompt: Prompt, salt: bytes = b"", *, keep: bool = True, model: str = ""
    ) -> Transcribed:
        """The prompt's tokens, with those of earlier answers in it as they were sampled. What one
        salt kept, no other one finds. keep: the next prompt may go on from here. model: the digest
        under which answers lie on the disk; "": they do not. May read a file."""
        text = _Text(salt)
        places = [(text.n_characters, name) for name in _names(text, prompt)]
        with self._lock:
            n_known, known = max((p for p in places if p[1] in self._places), default=(0, b""))
            ids = self._ids_before(known)
            # Where it is among the last two, nothing stands in the answer's place.
            answered = known != b"" and self._places[known].was_answered
        is_changed = answered and (n_known, known) not in places[-2:]
        for n_characters, name in reversed(places):
            if n_characters <= n_known or is_changed:
                break
            if (found := self._on_disk(model, name, prompt)) is None:
                if (n_characters, name) in places[-2:]:
                    continue
                if (found := self._on_disk(model, _answered(name), prompt)) is None:
                    continue
                is_changed = True  # an answer came here, and none that is known follows
            n_known, known, ids = n_characters, name, found
            if keep:
                self._put(name, b"", found, was_answered=is_changed)
            break
        transcribed = Transcribed(prompt, (), len(ids) if is_changed else None, text, model)
        for n_characters, name in places[-2:]:  # before the words that call for an answer; the end
            if n_characters > n_known:
                part = prompt.ids(n_known, n_characters)
                ids += part
                if keep:
                    self._put(name, known, part)
                n_known, known = n_characters, name
        return dataclasses.replace(transcribed, ids=tuple(ids))

    def add_answer(self, transcribed: Transcribed, token_ids: Iterable[int]) -> None:
        """Adds what the model said, without the token that ended it: the template writes that."""
        tokenizer, source = transcribed.prompt.tokenizer, transcribed.prompt.source
        ids = list(token_ids)
        if ids and ids[-1] in tokenizer.stop_ids:
            ids.pop()
        end, text = transcribed._text.name(), transcribed._text.copy()
        for control, run in itertools.groupby(ids, key=source.template_only.__contains__):
            if not control:
                text.add(_text_of(run, tokenizer))
                continue
            for token in run:
                text.add_control(token)
                text.add(_text_of([token], tokenizer))
        self._put(text.name(), end, ids, is_answer=True)
        if self._files is None or not transcribed._model:
            return
        self._files.keep(transcribed._model, text.name(), [*transcribed.ids, *ids])
        with self._lock:
            call = self._places[end].parent if end in self._places else b""
            before = self._ids_before(call)
        if before:
            self._files.keep(transcribed._model, _answered(call), before)

    def clear(self) -> None:
        with self._lock:
            self._places.clear()
            self._n_bytes = 0

    def _on_disk(self, model: str, name: bytes, prompt: Prompt) -> list[int] | None:
        found = self._files.find(model, name) if self._files is not None and model else None
        good = found and max(found) < prompt.tokenizer.n_vocab
        return found if good else None

    def _put(
        self,
        name: bytes,
        parent: bytes,
        ids: list[int],
        *,
        is_answer: bool = False,
        was_answered: bool = False,
    ) -> None:
        """Unless the parent has been given up meanwhile."""
        with self._lock:
            if parent and parent not in self._places:
                return
            if name not in self._places:
                self._places[name] = _Place(parent, array("i", ids), was_answered)
                self._n_bytes += self._places[name].n_bytes
            if is_answer and self._places[parent].parent:
                self._places[self._places[parent].parent].was_answered = True
            self._ids_before(name)
            while self._n_bytes > self._max_bytes:
                _, place = self._places.popitem(last=False)
                self._n_bytes -= place.n_bytes

    def _ids_before(self, name: bytes) -> list[int]:
        """All tokens before a place, which is used by that."""
        parts = []
        while name:
            place = self._places[name]
            self._places.move_to_end(name)
            parts.append(place.ids)
            name = place.parent
        return [token for part in reversed(parts) for token in part]


def _answered(name: bytes) -> bytes:
    """Under which a place lies on the disk that an answer came behind."""
    return blake2b(name, person=b"answered").digest()


def _names(text: _Text, prompt: Prompt) -> Iterator[bytes]:
    """The name of each place in a prompt where it may be cut: before its control tokens, for what
    comes after is encoded the same alone, and at its end. `text` has come as far as the name."""
    for i, token in sorted(prompt.control_tokens.items()):
        text.add(prompt.text[text.n_characters : i])
        yield text.name()
        text.add_control(token)
    text.add(prompt.text[text.n_characters :])
    yield text.name()


def _text_of(ids: Iterable[int], tokenizer: Tokenizer) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
