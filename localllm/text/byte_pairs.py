"""Byte-pair merges: read from a file, or derived from the scores of a SentencePiece vocabulary."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localllm.errors import FormatError
from localllm.text import merge_cache
from localllm.text.metadata import Metadata, read_strings, shown
from localllm.text.pair_encoder import Pairs
from localllm.text.vocabulary import BYTE, CONTROL, PREFIX, UNKNOWN, Vocabulary

MAX_MERGED_CHARS = 256
"""Longer tokens of a SentencePiece vocabulary are not tried as the result of a merge. Real ones
have at most about 32 characters; this bounds the work that a file can ask for."""


class WrittenMerges:
    """`tokenizer.ggml.merges`; see `Merges`. Raises `FormatError` if it is missing or malformed."""

    def __init__(self, metadata: Metadata, names: dict[str, int]) -> None:
        key = PREFIX + "merges"
        lines = read_strings(metadata, key)
        if lines is None:
            raise FormatError(f"the file has no {key}, which its kind of tokenizer needs")
        self._names = names
        self._lines, self._pairs = lines, None if _one_space_each(lines) else _cut_each(lines)
        # Of merges that stand there twice the last one counts, as in the library.
        self._ranks: dict[bytes | tuple[str, str], int] = dict(
            zip(lines if self._pairs is None else self._pairs, range(len(lines)), strict=True)
        )

    def rank(self, left: str, right: str) -> int | None:
        """See `Merges`."""
        found = self._ranks.get(
            f"{left} {right}".encode() if self._pairs is None else (left, right)
        )
        return found if found is not None and left + right in self._names else None

    def pairs(self) -> Pairs:
        """See `Merges`."""
        if self._pairs is not None:
            return self._pairs
        # All lines cut as one text take a tenth of the time.
        parts = b" \n ".join(self._lines).decode().split(" ") if self._lines else []
        return list(zip(parts[0::3], parts[1::3], strict=True))


def _cut_each(lines: list[bytes]) -> Pairs:
    key = PREFIX + "merges"
    try:
        texts = [line.decode() for line in lines]
    except UnicodeDecodeError:
        at = next(i for i, line in enumerate(lines) if not _decodes(line))
        raise FormatError(f"{key}[{at}] is {shown(lines[at])}, which is not UTF-8") from None
    pairs = []
    for i, text in enumerate(texts):
        # The left part has at least one character, so a space in the first place belongs to it.
        at = text.find(" ", 1)
        if at < 0 or at + 1 == len(text):
            raise FormatError(f"{key}[{i}] is {shown(text)}, expected two tokens with a space")
        pairs.append((text[:at], text[at + 1 :]))
    return pairs


def _one_space_each(lines: list[bytes]) -> bool:
    """Whether this is a file like any real one: UTF-8, one space in every line, and something on
    either side of it."""
    text = b"\n".join(lines)
    if not _decodes(text):
        return False
    framed = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    cuts = np.flatnonzero((framed == ord(" ")) | (framed == ord("\n")))
    spaces = framed[cuts] == ord(" ")
    in_turn = len(cuts) == 2 * len(lines) + 1 and bool(spaces[1::2].all())
    return in_turn and not spaces[0::2].any() and bool((np.diff(cuts) > 1).all())


class ScoredMerges:
    """Merges that make byte-pair encoding follow SentencePiece: how each token is put together from
    two others, the token with the highest score first; see `Merges`.

    Deriving them all takes seconds for 262,144 tokens, so those of `pairs` are kept in
    `cache_folder` (if given) as pairs of ids under a digest of the vocabulary. `names`: what
    `matchable` gives for it. Raises `FormatError` if the file has no scores.
    """

    def __init__(
        self, vocabulary: Vocabulary, names: dict[str, int], cache_folder: Path | None
    ) -> None:
        if vocabulary.scores is None:
            raise FormatError(f"the file has no {PREFIX}scores, which its kind of tokenizer needs")
        self._vocabulary, self._names, self._cache_folder = vocabulary, names, cache_folder
        self._scores = vocabulary.scores
        self._hidden = frozenset(vocabulary.ids_of_type(CONTROL, UNKNOWN, BYTE))
        self._hidden_names = frozenset(name for name, i in names.items() if i in self._hidden)

    def rank(self, left: str, right: str) -> tuple[float, int, int] | None:
        """See `Merges`. The order of `_derive`: by score, then id, then place of the cut."""
        made = self._names.get(left + right)
        if made is None or made in self._hidden or len(left) + len(right) > MAX_MERGED_CHARS:
            return None
        if left in self._hidden_names or right in self._hidden_names:
            return None
        return -float(self._scores[made]), made, len(left)

    def pairs(self) -> Pairs:
        """See `Merges`; without those that never run."""
        text_of = self._vocabulary.texts.__getitem__  # a hidden token is in no pair
        left, right = self._ids().T.tolist()
        return list(zip(map(text_of, left), map(text_of, right), strict=True))

    def _ids(self) -> npt.NDArray[np.int32]:
        """[n_merges, 2] ids of the parts, from the cache or derived."""
        v, folder = self._vocabulary, self._cache_folder
        if folder is None:
            return _derive(v, self._scores)
        digest = merge_cache.digest(v.tokens, v.types, self._scores)
        pairs = merge_cache.load(folder, digest, v.n_vocab)
        if pairs is None:
            pairs = _derive(v, self._scores)
            merge_cache.save(folder, digest, pairs)
        return pairs


def _derive(vocabulary: Vocabulary, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """[n_merges, 2] ids of the two parts, best first."""
    hidden = set(vocabulary.ids_of_type(CONTROL, UNKNOWN, BYTE))
    ids = {text: i for i, text in enumerate(vocabulary.texts) if i not in hidden}
    lefts: list[int] = []
    rights: list[int] = []
    results: list[int] = []
    get = ids.get
    for text, i in ids.items():
        n = len(text)
        if not 2 <= n <= MAX_MERGED_CHARS:
            continue
        for at in range(1, n):
            left = get(text[:at])
            if left is not None:
                right = get(text[at:])
                if right is not None:
                    lefts.append(left)
                    rights.append(right)
                    results.append(i)
    made = np.array(results, np.int32)
    # The lists are ordered by (id, place of the cut); the sort is stable.
    order = np.argsort(-scores[made], kind="stable")
    pairs = np.stack([np.array(lefts, np.int32), np.array(rights, np.int32)], axis=1)[order]
    return pairs[_can_happen(vocabulary, ids, pairs, made[order])]


def _can_happen(
    vocabulary: Vocabulary,
    ids: dict[str, int],
    pairs: npt.NDArray[np.int32],
    made: npt.NDArray[np.int32],
) -> npt.NDArray[np.bool_]:
    """[n_merges] False for merges that never run, half of all.

    When a merge runs, none has crossed the edges of its token yet, and those inside came in the
    order in which they come when the token's text stands alone: always the best one, the leftmost
    of equals. So only the merge that ends the encoding of the token's own text ever makes it.
    """
    rank_of = {(a, b): rank for rank, (a, b) in enumerate(pairs.tolist())}
    results = made.tolist()
    kept = np.ones(len(pairs), np.bool_)
    ways = np.bincount(made, minlength=vocabulary.n_vocab)
    last = np.full(vocabulary.n_vocab, -1, np.int64)
    for i in map(int, np.flatnonzero(ways > 1)):
        symbols = [ids.get(char, -1) for char in vocabulary.texts[i]]
        last[i] = _last_merge(symbols, rank_of, results)
    several = ways[made] > 1
    kept[several] = last[made[several]] == np.flatnonzero(several)
    return kept


def _last_merge(symbols: list[int], rank_of: dict[tuple[int, int], int], results: list[int]) -> int:
    """The rank of the merge that leaves one symbol; -1 if more than one is left. Changes
    `symbols`."""
    never = len(results)
    ranks = [rank_of.get(pair, never) for pair in pairwise(symbols)]
    while True:
        rank = min(ranks)
        if rank == never:
            return -1
        if len(ranks) == 1:
            return rank
        at = ranks.index(rank)
        symbols[at : at + 2] = [results[rank]]
        del ranks[at]
        if at:
            ranks[at - 1] = rank_of.get((symbols[at - 1], symbols[at]), never)
        if at < len(ranks):
            ranks[at] = rank_of.get((symbols[at], symbols[at + 1]), never)


def _decodes(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
