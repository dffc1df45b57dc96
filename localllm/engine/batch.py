"""The new tokens of a step, laid out as the native side reads them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localllm.engine.sampling import LogprobRows
from localllm.errors import ArgumentError
from localllm.native import ffi

if TYPE_CHECKING:
    from localllm.engine.runner import Feed


@dataclass
class Arrays:
    """Keeps the arrays of a batch alive while the native side reads them."""

    batch: Any
    keep: list[Any] = field(default_factory=list)


def lay_out(feeds: list[Feed], n_groups: int, next_rows: LogprobRows | None) -> Arrays:
    """An `llm_batch`. next_rows: where the log probabilities of next tokens go, a row for each
    token of the step. Raises `ArgumentError`."""
    tables = [f.sequence.table.entries[group] for group in range(n_groups) for f in feeds]
    columns = {
        "tokens": _int32([t for feed in feeds for t in feed.tokens], "token"),
        "seq_n_tokens": _int32([len(feed.tokens) for feed in feeds], "length"),
        "seq_first_pos": _int32([feed.sequence.n_computed for feed in feeds], "position"),
        "block_tables": _int32([b for t in tables for b in t], "block"),
        "table_offset": _int32([0, *itertools.accumulate(map(len, tables))], "offset"),
        "seq_sample": _int32([int(feed.sample) for feed in feeds], "flag"),
    }
    arrays = Arrays(ffi.new("llm_batch *"))
    handles = [ffi.NULL if f.sampler is None else f.sampler.handle for f in feeds]
    arrays.keep.append(ffi.new("llm_sampler *[]", handles))
    arrays.batch.seq_samplers = arrays.keep[-1]
    arrays.batch.n_seqs, arrays.batch.n_tokens = len(feeds), len(columns["tokens"])
    if next_rows is not None:
        columns["next_tokens"] = _int32([t for feed in feeds for t in _next(feed)], "token")
        arrays.keep.append(next_rows)
        arrays.batch.next_logprobs = next_rows.pointer
    for name, column in columns.items():
        arrays.keep.append(column)
        setattr(arrays.batch, name, column)
    return arrays


def _next(feed: Feed) -> Sequence[int]:
    if feed.next_tokens is None:
        return [-1] * len(feed.tokens)
    if len(feed.next_tokens) != len(feed.tokens):
        raise ArgumentError(
            f"a feed of {len(feed.tokens)} tokens has {len(feed.next_tokens)} next tokens"
        )
    return feed.next_tokens


def _int32(values: list[int], what: str) -> Any:
    try:
        return ffi.new("int32_t[]", values)
    except (OverflowError, TypeError) as e:
        raise ArgumentError(f"a {what} does not fit 32 bits: {e}") from e
