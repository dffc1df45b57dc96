"""Samplers inside the engine's steps: nothing that else runs changes a sequence's tokens, and log
probabilities are those of the raw logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reference.engine import random_tokens, runner_of
from reference.tolerances import LOGPROB

from localllm.engine.runner import Feed, Model, Runner
from localllm.engine.sampling import Sampled, Sampler
from localllm.errors import ArgumentError, CancelledError
from localllm.params import GenerateParams

CHAIN = GenerateParams(temperature=1.2, repeat_penalty=1.2, dry_multiplier=0.8, seed=9)
MIROSTAT = GenerateParams(temperature=1, mirostat=2, mirostat_tau=4, repeat_penalty=1.1, seed=9)
MATES = (
    GenerateParams(temperature=2, min_p=0, top_k=0, seed=1),
    GenerateParams(temperature=0),
    GenerateParams(temperature=1, mirostat=2, seed=9),
    GenerateParams(temperature=1.5, xtc_probability=1, xtc_threshold=0.01, seed=9),
)


@pytest.fixture(scope="module")
def model(tiny: Callable[[str, str], Path]) -> Iterator[Model]:
    with Model.load(tiny("llama", "Q8_0"), n_threads=1) as m:
        yield m


def begin(runner: Runner, params: GenerateParams, prompt: list[int]) -> Feed:
    sampler = Sampler(params, runner.model.info.n_vocab)
    sampler.accept(prompt)
    sequence = runner.new_sequence()
    runner.prefill(Feed(sequence, prompt[:-1], sample=False))
    return Feed(sequence, prompt[-1:], sampler=sampler)


def advance(runner: Runner, feeds: list[Feed], n: int) -> list[list[int]]:
    """n single steps of all feeds together; the tokens of each."""
    rows: list[list[int]] = [[] for _ in feeds]
    for _ in range(n):
        result = runner.step(feeds)
        for i, row in enumerate(rows):
            row.append(result.sampled(i).token)
        feeds = [
            Feed(f.sequence, row[-1:], sampler=f.sampler)
            for f, row in zip(feeds, rows, strict=True)
        ]
    return rows


@pytest.mark.parametrize("params", [CHAIN, MIROSTAT])
def test_same_seed_same_tokens_whatever_else_runs(model: Model, params: GenerateParams) -> None:
    """Alone, and in the middle of a batch of sequences with other samplers."""
    prompt = random_tokens(23, model.info.n_vocab, seed=1)
    with runner_of(model) as runner:
        alone = advance(runner, [begin(runner, params, prompt)], 30)[0]
    with runner_of(model) as runner:
        mates = [
            begin(runner, mate, random_tokens(9 + i, model.info.n_vocab, seed=i))
            for i, mate in enumerate(MATES)
        ]
        mine = begin(runner, params, prompt)
        early = advance(runner, [*mates[:2], mine, *mates[2:]], 12)[2]
        rest = Feed(mine.sequence, early[-1:], sampler=mine.sampler)
        late = [s.token for s in runner.decode([rest], 18)[0]]
    assert early + late == alone
    assert len(set(alone)) > 5
    other = replace(params, seed=params.seed + 1)
    with runner_of(model) as runner:
        assert advance(runner, [begin(runner, other, prompt)], 30)[0] != alone


@pytest.mark.parametrize("params", [CHAIN, MIROSTAT])
def test_a_forked_sequence_with_a_cloned_sampler(model: Model, params: GenerateParams) -> None:
    with runner_of(model) as runner:
        feed = begin(runner, params, random_tokens(40, model.info.n_vocab))
        first = advance(runner, [feed], 10)[0]
        assert feed.sampler is not None
        fork, sampler = runner.fork(feed.sequence), feed.sampler.clone()
        one = advance(runner, [Feed(feed.sequence, first[-1:], sampler=feed.sampler)], 15)
        two = advance(runner, [Feed(fork, first[-1:], sampler=sampler)], 15)
    assert one == two


@pytest.mark.parametrize("params", [CHAIN, MIROSTAT])
def test_a_cancelled_step_changes_no_sampler(model: Model, params: GenerateParams) -> None:
    prompt = random_tokens(20, model.info.n_vocab)
    with runner_of(model) as runner:
        want = advance(runner, [begin(runner, params, prompt)], 15)[0]
    with runner_of(model) as runner:
        feed, got = begin(runner, params, prompt), []
        for _ in range(15):
            runner.cancel()
            with pytest.raises(CancelledError):
                runner.step([feed])
            with pytest.raises(CancelledError):
                runner.decode([feed], 3)
            runner.reset_cancel()
            got += advance(runner, [feed], 1)[0]
            feed = Feed(feed.sequence, got[-1:], sampler=feed.sampler)
    assert got == want


@pytest.mark.parametrize("params", [CHAIN, MIROSTAT])
def test_a_step_picks_and_accepts_as_the_sampler_alone(
    model: Model, params: GenerateParams
) -> None:
    """A second sampler that is told of every token picks the same from the step's raw logits."""
    prompt = random_tokens(20, model.info.n_vocab)
    with runner_of(model) as runner:
        feed = begin(runner, params, prompt)
        assert feed.sampler is not None
        alone = feed.sampler.clone()
        for position in range(len(prompt), len(prompt) + 30):
            result = runner.step([feed], want_logits=True)
            assert result.logits is not None
            token = alone.pick(result.logits[0], position)
            assert result.sampled(0).token == token
            alone.accept([token])
            feed = Feed(feed.sequence, [token], sampler=feed.sampler)


@pytest.mark.parametrize("n_top", [0, 4, 20])
def test_logprobs_are_those_of_the_raw_logits(model: Model, n_top: int) -> None:
    """Whatever the chain does to them; the same from steps and from decode."""
    n_vocab = model.info.n_vocab
    prompts = [random_tokens(n, n_vocab, seed=n) for n in (7, 12, 5)]

    def feeds(runner: Runner) -> list[Feed]:
        started = [begin(runner, CHAIN, prompts[0]), begin(runner, MIROSTAT, prompts[1])]
        return [*started, replace(begin(runner, CHAIN, prompts[2]), sampler=None)]

    rows: list[list[Sampled]] = [[], [], []]
    with runner_of(model) as runner:
        step = feeds(runner)
        for _ in range(6):
            result = runner.step(step, want_logits=True, n_logprobs=n_top)
            assert result.logits is not None
            for i, row in enumerate(rows):
                row.append(result.sampled(i))
                check_row(row[-1], result.logits[i], n_top)
            step = [
                Feed(f.sequence, [row[-1].token], sampler=f.sampler)
                for f, row in zip(step, rows, strict=True)
            ]
    with runner_of(model) as runner:
        assert runner.decode(feeds(runner), 6, n_logprobs=n_top) == rows
    with runner_of(model) as runner:
        plain = runner.decode(feeds(runner), 6)
    assert plain == [[Sampled(s.token) for s in row] for row in rows]


def check_row(sampled: Sampled, logits: np.ndarray, n_top: int) -> None:
    x = logits.astype(np.float64)
    want = x - x.max() - np.log(np.exp(x - x.max()).sum())
    top = np.argsort(-x, kind="stable")[:n_top]
    assert sampled.logprob == pytest.approx(want[sampled.token], abs=LOGPROB.value)
    assert [i for i, _ in sampled.top] == top.tolist()
    assert [v for _, v in sampled.top] == pytest.approx(want[top].tolist(), abs=LOGPROB.value)


def test_samplers_that_do_not_fit_are_refused(model: Model) -> None:
    n_vocab = model.info.n_vocab
    with runner_of(model) as runner:
        one, two = runner.new_sequence(), runner.new_sequence()
        shared = Sampler(CHAIN, n_vocab)
        with pytest.raises(ArgumentError, match="share a sampler"):
            runner.step([Feed(one, [1], sampler=shared), Feed(two, [1], sampler=shared)])
        with pytest.raises(ArgumentError, match=f"is for {n_vocab - 1} tokens, not {n_vocab}"):
            runner.step([Feed(one, [1], sampler=Sampler(CHAIN, n_vocab - 1))])
        with pytest.raises(ArgumentError, match="0 to 20"):
            runner.step([Feed(one, [1])], n_logprobs=21)
        with pytest.raises(ArgumentError, match="no sample"):
            runner.step([Feed(one, [1], sample=False)]).sampled(0)
