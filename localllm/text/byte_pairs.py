"""Byte-pair merges: read from a file, or derived from the scores of a SentencePiece vocabulary."""

from __future__ import annotations

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
    """The merges that make byte-pair encoding follow SentencePiece: every way to put a token
    together from two others, the token with the highest score first.

    Deriving them takes a second for 262,144 tokens, so they are kept in `cache_folder` (if given)
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
    return np.stack([np.array(lefts, np.int32), np.array(rights, np.int32)], axis=1)[order]


def _decodes(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
