"""What every kind of vocabulary shares: the door to the `tokenizers` library."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from localllm.errors import FormatError
from localllm.text.vocabulary import CONTROL, UNKNOWN, Vocabulary

T = TypeVar("T")

# Batches of one need no threads, which could not be forked either.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HIDDEN = "\uffff"
"""A noncharacter that makes a token's text one that no input has."""


class Encoder(Protocol):
    """Turns text that holds no special token into ids. Safe to call from several threads."""

    def encode(self, text: str, after_special: bool) -> list[int]:
        """The ids of `text`. `after_special`: a special token or nothing stands before it."""

    def piece(self, token_id: int) -> bytes:
        """The bytes that an ordinary (neither control nor user-defined) token stands for."""


def matchable(vocabulary: Vocabulary) -> dict[str, int]:
    """Token texts to ids, as a model of the `tokenizers` library gets them.

    Control and unknown tokens are there under a hidden name: ordinary text never becomes one of
    them, whatever the merges say.
    """
    names = vocabulary.texts.copy()
    for i in vocabulary.ids_of_type(CONTROL, UNKNOWN):
        names[i] = HIDDEN + names[i]
    for i, value in vocabulary.byte_values.items():
        names[i] = f"<0x{value:02X}>"
    return dict(zip(names, range(len(names)), strict=True))


@contextlib.contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Half a million live tuples make the collector run again and again: building a large
    vocabulary takes twice as long with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def guarded(what: str, make: Callable[[], T]) -> T:
    """Runs a call into the `tokenizers` library. Its Rust code reports bad input by exceptions of
    no common class, one of them (a panic) outside `Exception`: all become `FormatError`."""
    try:
        return make()
    except Exception as e:
        raise FormatError(f"{what}: {e}") from e
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        raise FormatError(f"{what}: {e}") from None


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The ids that a `tokenizers.Tokenizer` gives for a text. In a batch, because for that the
    library lets other Python threads run."""
    return guarded(
        "cannot encode a text",
        lambda: list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids),
    )
