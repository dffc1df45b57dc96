"""A conversation keeps its tokens in the engine: the same answers as from scratch, and only what is
new is computed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localllm.engine.memory_plan import N_SEQUENCES
from localllm.engine.paged import PagedEngine
from localllm.engine.runner import Model, Runner
from localllm.engine.sampling import Sampler
from localllm.params import GenerateParams

FULL = os.environ.get("FULL") == "1"
N_TURNS = 200 if FULL else 30
N_CTX = 600

Tiny = Callable[[str, str], Path]


@pytest.fixture(params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Model]:
    with Model.load(tiny(request.param, "Q4_0"), n_threads=1) as m:
        yield m


def engine_of(model: Model, kv: str = "f16") -> PagedEngine:
    runner = Runner(
        model,
        kv_type=kv,
        n_ctx_tokens=N_CTX,
        max_batch_tokens=64,
        max_sequences=1,
        n_forks=N_SEQUENCES - 1,
    )
    return PagedEngine(model, runner, N_CTX)


def answer(engine: PagedEngine, prompt: list[int], n: int, seed: int) -> tuple[list[int], int]:
    """The sampled tokens, and how many tokens of the prompt were computed."""
    params = GenerateParams(temperature=1.5, seed=seed, top_k=0, repeat_penalty=1.2)
    sampler = Sampler(params, engine.model.info.n_vocab)
    kept = engine.begin(prompt)
    done: list[int] = []
    sampler.accept(prompt)
    tokens = [engine.prefill(prompt[kept:], sampler, None, done.append).token]
    assert done[-1] == len(prompt) - kept and done == sorted(done)
    while len(tokens) < n:
        steps = engine.decode(tokens[-1], min(7, n - len(tokens)), sampler, [], None)
        tokens += [s.token for s in steps]
    return tokens, len(prompt) - kept


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_turns_equal_answers_from_scratch(model: Model, kv: str) -> None:
    rng = random.Random(1)
    n_vocab = model.info.n_vocab
    kept, fresh = engine_of(model, kv), engine_of(model, kv)

    def words(n: int) -> list[int]:
        return [rng.randrange(n_vocab) for _ in range(n)]

    history = words(40)
    saved = 0
    for turn in range(N_TURNS):
        kind = rng.random()
        if kind < 0.15 or len(history) > N_CTX - 200:
            history = words(rng.randint(1, 60))  # another conversation
        elif kind < 0.3:
            history = history[: rng.randint(1, len(history))]  # an edited message
        elif kind < 0.45:
            history = history + words(1) * (kind > 0.4)  # regenerate
        else:
            history = history + words(rng.randint(1, 90))
        n = rng.randint(1, 60)
        tokens, n_computed = answer(kept, history, n, turn)
        fresh.forget()
        wanted, n_all = answer(fresh, history, n, turn)
        assert tokens == wanted, f"turn {turn}: {n_all - n_computed} of {n_all} tokens were kept"
        saved += n_all - n_computed
        history = history + tokens[: rng.choice([0, n, n])]
    assert saved > 0
    kept.forget()
    blocks = kept.runner.blocks
    assert [blocks.n_free(g) for g in range(blocks.n_groups)] == list(blocks.capacity)


def test_a_turn_computes_only_what_is_new(model: Model) -> None:
    engine = engine_of(model)
    rng = random.Random(2)
    history = [rng.randrange(model.info.n_vocab) for _ in range(100)]
    tokens, n = answer(engine, history, 150, 1)
    assert n == 100
    # The last sampled token was never fed: it is new, too.
    history = history + tokens + [1, 2, 3]
    assert answer(engine, history, 1, 1)[1] == 4
    assert engine.n_kept == len(history)
    # Regenerated: the prompt's last token gives the logits, all others are there.
    assert answer(engine, history, 1, 2)[1] == 1


def test_an_answer_is_taken_back_behind_a_window(model: Model) -> None:
    """An answer that is longer than the window, then its prompt again: the fork at the prompt's end
    saves it."""
    engine = engine_of(model)
    prompt = [i % model.info.n_vocab for i in range(200)]
    answer(engine, prompt, 150, 1)
    assert answer(engine, prompt, 5, 2)[1] == 1
    # Less than all of the prompt, as when the template writes its end in another way.
    assert answer(engine, [*prompt[:-10], 3, 3], 5, 2)[1] <= 2


def test_a_cancelled_prefill_keeps_what_was_computed(model: Model) -> None:
    engine = engine_of(model)
    from localllm.errors import CancelledError

    prompt = [i % model.info.n_vocab for i in range(300)]
    sampler = Sampler(GenerateParams(temperature=0), model.info.n_vocab)
    assert engine.begin(prompt) == 0

    def stop_at(n_done: int) -> None:
        if n_done >= 128:
            engine.cancel()

    with pytest.raises(CancelledError):
        engine.prefill(prompt, sampler, None, stop_at)
    engine.reset_cancel()
    tokens, n = answer(engine, prompt, 8, 4)
    assert n == 300 - 128
    engine.forget()
    assert answer(engine, prompt, 8, 4)[0] == tokens
