"""Byte-pair merges: read from a file, or derived from the scores of a SentencePiece vocabulary."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localllm.errors import FormatError
from localllm.text import merge_cache
from localllm.text.metadata import Metadata, read_strings, shown
from localllm.text.vocabulary import BYTE, CONTROL, PREFIX, UNKNOWN, Vocabulary

MAX_MERGED_CHARS = 256
"""Longer tokens of a SentencePiece vocabulary are not tried as the result of a merge. Real ones
have at most about 32 characters; this bounds the work that a file can ask for."""

Pairs = list[tuple[str, str]]


def read_merges(metadata: Metadata) -> Pairs:
    """`tokenizer.ggml.merges`, best first. Raises `FormatError` if it is missing or malformed."""
    key = PREFIX + "merges"
    lines = read_strings(metadata, key)
    if lines is None:
        raise FormatError(f"the file has no {key}, which its kind of tokenizer needs")
    pairs = _one_space_each(lines)
    if pairs is not None:
        return pairs
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


def _one_space_each(lines: list[bytes]) -> Pairs | None:
    """The merges of a file like any real one: a space in every line, and something on either side
    of it. All lines are cut as one text, which takes a tenth of the time. None: not such a file."""
    if not lines:
        return []
    try:
        text = b" \n ".join(lines).decode()
    except UnicodeDecodeError:
        return None
    parts = text.split(" ")
    if len(parts) != 3 * len(lines) - 1 or "" in parts or text.count("\n") != len(lines) - 1:
        return None
    if parts[2::3].count("\n") != len(lines) - 1:
        return None
    return list(zip(parts[0::3], parts[1::3], strict=True))


def usable(pairs: Pairs, names: dict[str, int]) -> Pairs:
    """The merges whose parts and result are all tokens."""
    return [
        (left, right)
        for left, right in pairs
        if left in names and right in names and left + right in names
    ]


def merges_from_scores(
    vocabulary: Vocabulary, names: dict[str, int], cache_folder: Path | None
) -> Pairs:
    """The merges that make byte-pair encoding follow SentencePiece: how each token is put together
    from two others, the token with the highest score first.

    Deriving them takes seconds for 262,144 tokens, so they are kept in `cache_folder` (if given)
    as pairs of ids under a digest of the vocabulary. `names`: what `matchable` gives for it.
    """
    if vocabulary.scores is None:
        raise FormatError(f"the file has no {PREFIX}scores, which its kind of tokenizer needs")
    digest = merge_cache.digest(vocabulary.tokens, vocabulary.types, vocabulary.scores)
    text_of = list(names).__getitem__
    n_vocab = vocabulary.n_vocab
    pairs = merge_cache.load(cache_folder, digest, n_vocab) if cache_folder else None
    if pairs is None:
        pairs = _derive(vocabulary, vocabulary.scores)
        if cache_folder:
            merge_cache.save(cache_folder, digest, pairs)
    left, right = pairs.T.tolist()
    return list(zip(map(text_of, left), map(text_of, right), strict=True))


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
