"""Finding words in texts: a user's text as a full-text query, and the part of a text around what
was found."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from localllm.tui.conversations.unwritten import clean

MAX_WORDS = 32
MAX_WORD = 200
_CONTEXT = 60  # characters before and after a match
#: Scripts that write no spaces between words: a word is found only as a part of a text.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Kana, Han
)
_ORDINARY = set(".,;:!?'\"()[]{}-_/’“”„«»…–—")
_SPACE = re.compile(r"\s+")

Pieces = tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Wanted:
    """match: for FTS5, "" if only `parts` tell. parts: texts that must be there as they are, but
    for upper and lower case. words: all of the query's, to mark them."""

    match: str
    parts: tuple[str, ...]
    words: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.words)

    def finds(self, text: str) -> bool:
        """Whether a text that is not in the index holds all words."""
        folded = _folded(text)
        return all(_pattern(word).search(folded) for word in self.words)


def wanted(text: str) -> Wanted:
    """Any text is a query: words by their beginnings; what is no word (`C++`, an emoji) and words
    of scripts without spaces as parts."""
    terms, parts, words = [], [], []
    text = unicodedata.normalize("NFC", clean(text).replace("\0", " "))
    for piece in text.split()[:MAX_WORDS]:
        piece = piece[:MAX_WORD]
        has_word = any(_is_word(c) for c in piece)
        unspaced = bool(_UNSPACED.search(piece))
        if not has_word and all(c in _ORDINARY for c in piece):
            continue  # a dash says nothing
        words.append(piece)
        if not has_word or unspaced or not all(_is_word(c) or c in _ORDINARY for c in piece):
            parts.append(piece)
        if has_word and not unspaced:
            terms.append('"' + piece.replace('"', '""') + '"*')
    return Wanted(" AND ".join(terms), tuple(parts), tuple(words))


def around(text: str, query: Wanted) -> Pieces:
    """A short part of a text on one line, from its first match on, with all matches in it."""
    folded = _folded(text)
    patterns = [_pattern(word) for word in query.words]
    first = min((m.start() for p in patterns if (m := p.search(folded))), default=0)
    begin = max(0, first - _CONTEXT)
    if begin:
        space = text.find(" ", begin, first)
        begin = space + 1 if space > 0 else begin
    end = min(len(text), first + 2 * _CONTEXT)
    spans = sorted(m.span() for p in patterns for m in p.finditer(folded, begin, end))
    pieces: list[tuple[str, bool]] = [("…", False)] if begin else []
    at = begin
    for start, stop in spans:
        if stop <= at:
            continue
        pieces += [(text[at : max(at, start)], False), (text[max(at, start) : stop], True)]
        at = stop
    pieces += [(text[at:end], False), ("…" if end < len(text) else "", False)]
    return tuple((_SPACE.sub(" ", t), hit) for t, hit in pieces if t)


def _is_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def _pattern(word: str) -> re.Pattern[str]:
    folded = _folded(word)
    inner = [re.escape(each) for each in re.split(r"[^\w]+|_+", folded) if each]
    plain = folded and all(_is_word(c) or c in _ORDINARY for c in folded)
    if plain and inner and not _UNSPACED.search(folded):
        return re.compile(r"(?<![^\W_])" + r"[\W_]+".join(inner))
    return re.compile(re.escape(folded))


class _Folds(dict[int, int]):
    """Characters in small letters without accents, filled as they come."""

    def __missing__(self, code: int) -> int:
        base = unicodedata.normalize("NFD", chr(code))[0]
        lowered = base.lower()
        self[code] = ord(lowered if len(lowered) == 1 else base)
        return self[code]


_FOLDS = _Folds()


def _folded(text: str) -> str:
    """Character for character, so that places are the same."""
    return text.lower() if text.isascii() else text.translate(_FOLDS)
