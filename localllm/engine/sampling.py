"""From logits to tokens: the native sampler chain of one sequence."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from localllm import native
from localllm.errors import ArgumentError
from localllm.native import ffi, lib
from localllm.params import GenerateParams
from localllm.text.tokenizer import Tokenizer

Logits = npt.NDArray[np.float32]

SAMPLER_IDS = {native.text(lib.llm_sampler_name(i)): i for i in range(lib.LLM_N_SAMPLERS)}
MAX_TOP_LOGPROBS: int = lib.LLM_MAX_TOP_LOGPROBS

#: Fields that `llm_sampler_params` and `GenerateParams` have in common.
_SAME = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
)


class Sampled(NamedTuple):
    """A sampled token. With log probabilities asked for: its own, and (token id, value) of the
    likeliest ones, best first, all natural logarithms of the model's raw distribution. rank, of a
    prompt's tokens: how many tokens are at least as likely, itself among them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class Sampler:
    """The parameters and the state of one sequence's sampling: it knows the tokens that came so
    far, as far as penalties, DRY and mirostat need them.

    n_vocab: only ids below it are sampled. stop_ids: never come with `params.ignore_eos`.
    breaker_ids: tokens that end a repeat for DRY. The same parameters, tokens and logits give the
    same token on every machine, whatever else runs.

    Raises `ArgumentError` for a value out of its range, with the range.
    """

    def __init__(
        self,
        params: GenerateParams,
        n_vocab: int,
        *,
        stop_ids: Sequence[int] = (),
        breaker_ids: Sequence[int] = (),
    ) -> None:
        order = [SAMPLER_IDS[name] for name in params.samplers]
        banned = sorted(stop_ids) if params.ignore_eos else []
        bias_ids = [token for token, _ in params.logit_bias]
        raw = ffi.new("llm_sampler_params *")
        raw.seed, raw.n_vocab = params.seed % 2**64, n_vocab
        for name in _SAME:
            setattr(raw, name, getattr(params, name))
        arrays = {
            "order": ffi.new("int32_t[]", order),
            "dry_breakers": ffi.new("int32_t[]", list(breaker_ids)),
            "bias_ids": ffi.new("int32_t[]", bias_ids),
            "bias_values": ffi.new("float[]", [bias for _, bias in params.logit_bias]),
            "banned": ffi.new("int32_t[]", banned),
        }
        for name, array in arrays.items():
            setattr(raw, name, array)
        raw.n_order, raw.n_dry_breakers = len(order), len(breaker_ids)
        raw.n_bias, raw.n_banned = len(bias_ids), len(banned)
        self.n_vocab = n_vocab
        self.handle: Any = native.create(
            "llm_sampler *", lib.llm_sampler_create, lib.llm_sampler_free, raw
        )

    def clone(self) -> Sampler:
        """A sampler with the same parameters and the same tokens behind it, for a fork."""
        copy = Sampler.__new__(Sampler)
        copy.n_vocab = self.n_vocab
        copy.handle = native.create(
            "llm_sampler *", lib.llm_sampler_clone, lib.llm_sampler_free, self.handle
        )
        return copy

    def accept(self, ids: Sequence[int]) -> None:
        """Tells of tokens that came: a prompt's, or what `pick` gave. A `Runner` does this for
        what it samples itself. Raises `ArgumentError` for ids outside the vocabulary."""
        tokens = np.asarray(ids, dtype=np.int64)
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.n_vocab):
            raise ArgumentError(f"a token id is not in 0 .. {self.n_vocab - 1}")
        pointer = native.array_in(tokens.astype(np.int32), np.int32, name="ids")
        native.call(lib.llm_sampler_accept, self.handle, pointer, tokens.size)

    def pick(self, logits: Logits, position: int) -> int:
        """The token at `position` for logits [n_vocab], which are only read; -1 when none of them
        can be picked (all NaN or minus infinity). The token is not accepted yet."""
        token = ffi.new("int32_t *")
        native.call(lib.llm_sampler_pick, self.handle, self._pointer(logits), position, token)
        return int(token[0])

    def logprobs(
        self, logits: Logits, token: int, n_top: int
    ) -> tuple[float, tuple[tuple[int, float], ...]]:
        """The natural logarithm of a token's probability in the raw logits [n_vocab], and those of
        the n_top (0 to 20) likeliest tokens as (id, value), best first, ties by id."""
        rows = LogprobRows(1, n_top)
        native.call(lib.llm_logprobs_from, self._pointer(logits), self.n_vocab, token, rows.pointer)
        sampled = rows.sampled(0)
        assert sampled.logprob is not None
        return sampled.logprob, sampled.top

    def _pointer(self, logits: Logits) -> Any:
        return native.array_in(logits, np.float32, self.n_vocab, name="logits")


class LogprobRows:
    """Memory for the log probabilities of n_rows sampled tokens, as `llm_logprobs`. ranks: also for
    their ranks."""

    def __init__(self, n_rows: int, n_top: int, *, ranks: bool = False) -> None:
        if not 0 <= n_top <= MAX_TOP_LOGPROBS:
            raise ArgumentError(f"logprobs: {n_top} is out of range, allowed are 0 to 20")
        self._ids = np.empty((n_rows, 1 + n_top), dtype=np.int32)
        self._values = np.empty((n_rows, 1 + n_top), dtype=np.float32)
        self._ranks = np.empty(n_rows, dtype=np.int32) if ranks else None
        self.pointer: Any = ffi.new("llm_logprobs *")
        self._keep = (
            native.array_out(self._ids, np.int32, name="ids"),
            native.array_out(self._values, np.float32, name="values"),
            ffi.NULL
            if self._ranks is None
            else native.array_out(self._ranks, np.int32, name="ranks"),
        )
        self.pointer.n_top = n_top
        self.pointer.ids, self.pointer.values, self.pointer.ranks = self._keep

    def sampled(self, row: int) -> Sampled:
        """What row `row` says: its token with its log probability and the likeliest ones."""
        ids, values = self._ids[row].tolist(), self._values[row].tolist()
        top = [(i, v) for i, v in zip(ids[1:], values[1:], strict=True) if i >= 0]
        rank = None if self._ranks is None else int(self._ranks[row])
        return Sampled(ids[0], values[0], tuple(top), rank)


def sampler_of(params: GenerateParams, tokenizer: Tokenizer) -> Sampler:
    """The sampler for an answer in a tokenizer's vocabulary."""
    breakers: Sequence[int] = ()
    if params.dry_multiplier > 0 and "dry" in params.samplers:
        breakers = breaker_ids(tokenizer, params.dry_sequence_breakers)
    return Sampler(
        params, tokenizer.n_vocab, stop_ids=sorted(tokenizer.stop_ids), breaker_ids=breakers
    )


#: Per tokenizer: the bytes of all its tokens in a row, and where each one begins.
_Texts = tuple[bytes, npt.NDArray[np.int64]]
_texts: weakref.WeakKeyDictionary[Tokenizer, _Texts] = weakref.WeakKeyDictionary()


def breaker_ids(tokenizer: Tokenizer, strings: Sequence[str]) -> list[int]:
    """The tokens whose text contains one of the strings, ascending. The first call of a tokenizer
    reads its whole vocabulary (0.3 s for 262,144 tokens), later ones search it."""
    if tokenizer not in _texts:
        pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        starts = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces], out=starts[1:])
        _texts[tokenizer] = (b"".join(pieces), starts)
    text, starts = _texts[tokenizer]
    found: set[int] = set()
    for string in strings:
        needle, at = string.encode("utf-8"), -1
        places = []
        while (at := text.find(needle, at + 1)) >= 0:
            places.append(at)
        begin = np.array(places, dtype=np.int64)
        token = np.searchsorted(starts, begin, side="right") - 1
        found.update(token[begin + len(needle) <= starts[token + 1]].tolist())
    return sorted(found)
