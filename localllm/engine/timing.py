"""Timed runs of an engine on made-up tokens, for `localllm bench`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from localllm.engine.engine import Engine
from localllm.engine.sampling import Sampler, sampler_of
from localllm.params import GenerateParams
from localllm.text.tokenizer import Tokenizer

#: Token numbers come from the beginning of the vocabulary, which every model has.
_MOST_IDS = 1000
_GREEDY = GenerateParams(temperature=0)


def time_prefill(engine: Engine, tokenizer: Tokenizer, n_tokens: int) -> float:
    """Seconds from an empty context to the token after a prompt of n_tokens. Raises
    `CancelledError`."""
    sampler = sampler_of(_GREEDY, tokenizer)
    _empty(engine)
    began = time.perf_counter()
    _fill(engine, sampler, tokenizer.n_vocab, n_tokens)
    seconds = time.perf_counter() - began
    _empty(engine)
    return seconds


def time_decode(engine: Engine, tokenizer: Tokenizer, depth: int, n_tokens: int) -> Iterator[float]:
    """Fills an empty context with max(depth, 1) tokens, then yields the seconds of n_tokens more
    steps, until the context is full. No token ends it. Raises `CancelledError`."""
    sampler = sampler_of(_GREEDY, tokenizer)
    _empty(engine)
    used = max(depth, 1)
    token = _fill(engine, sampler, tokenizer.n_vocab, used)
    try:
        while used + n_tokens <= engine.n_ctx:
            left, began = n_tokens, time.perf_counter()
            while left:
                sampled = engine.decode(token, left, sampler, (), None)
                token = sampled[-1].token
                left -= len(sampled)
            seconds = time.perf_counter() - began
            used += n_tokens
            yield seconds
    finally:
        _empty(engine)


def _empty(engine: Engine) -> None:
    """Drops what is kept without giving its memory back, as `forget` would: a timed run would have
    to ask for it anew. A prompt of one token keeps nothing."""
    engine.begin([1])


def _fill(engine: Engine, sampler: Sampler, n_vocab: int, n_tokens: int) -> int:
    """Computes a prompt; returns the token that was sampled after it."""
    prompt = [1 + 7 * i % min(_MOST_IDS, n_vocab - 1) for i in range(n_tokens)]
    kept = engine.begin(prompt)
    return engine.prefill(prompt[kept:], sampler, None, lambda done: None).token
