"""How long an engine takes for made-up tokens: what `localllm bench` measures."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from localllm.engine.engine import Engine
from localllm.engine.sampling import Sampler
from localllm.params import GenerateParams

STEPS_AT_ONCE = 16  # as in an answer


def time_prefill(engine: Engine, n_vocab: int, n_tokens: int) -> float:
    """Seconds from an empty context to the first token after a prompt of n_tokens.
    Raises `CancelledError`."""
    sampler = _greedy(n_vocab)
    tokens = _made_up(n_vocab, n_tokens)
    _empty(engine)
    started = time.perf_counter()
    engine.begin(tokens)
    engine.prefill(tokens, sampler, None, _quiet)
    return time.perf_counter() - started


def time_decode(engine: Engine, n_vocab: int, depth: int, n_tokens: int) -> Iterator[float]:
    """Seconds of n_tokens greedy steps behind `depth` tokens (at least one), again and again until
    the context is full. Raises `CancelledError`."""
    sampler = _greedy(n_vocab)
    tokens = _made_up(n_vocab, max(1, depth))
    _empty(engine)
    engine.begin(tokens)
    last = engine.prefill(tokens, sampler, None, _quiet).token
    while engine.n_kept + n_tokens <= engine.n_ctx:
        n_left = n_tokens
        started = time.perf_counter()
        while n_left:
            steps = engine.decode(last, min(n_left, STEPS_AT_ONCE), sampler, (), None)
            n_left -= len(steps)
            last = steps[-1].token
        yield time.perf_counter() - started


def _empty(engine: Engine) -> None:
    """Drops what is kept, but not its memory as `forget` does: a run would ask for that anew while
    it is timed. Of a prompt of one token nothing can be kept."""
    engine.begin([0])


def _greedy(n_vocab: int) -> Sampler:
    return Sampler(GenerateParams(temperature=0), n_vocab)


def _made_up(n_vocab: int, n_tokens: int) -> list[int]:
    """Tokens that no layer of any model has seen in this order: the same ones each time."""
    return random.Random(0).choices(range(n_vocab), k=n_tokens)


def _quiet(n_done: int) -> None:
    """Nobody watches."""
