"""One arithmetic, whatever the schedule: every test here is an ==.

A sequence's logits must not depend on the batch it runs in, how its prefill is cut, the number of
threads, the instruction set, the weight layout, or who else uses its blocks. Tiny models of every
architecture show it for every kind of activation (f32, int8 per 32, int8 per 256), SmolLM2 for
sizes that no tiny model has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference.engine import (
    decode_ids,
    feed_chunks,
    load_logits,
    logits_of,
    random_tokens,
    runner_of,
)

from localllm import native
from localllm.engine.blocks import SequenceState
from localllm.engine.runner import Feed, Model, Runner
from localllm.engine.sampling import Sampler
from localllm.params import GenerateParams
from models.tiny.make import ARCHITECTURES, TYPES, fits

FULL = os.environ.get("FULL") == "1"
ISAS = [native.text(native.lib.llm_isa_name(i)) for i in range(native.lib.llm_n_isas())]
KV_TYPES = ("f16", "q8_0")
ONE_OF_EACH_KIND = ("F32", "Q4_1", "Q4_K")

CASES = [
    (a.name, t)
    for a in ARCHITECTURES.values()
    for t in (TYPES if FULL else ONE_OF_EACH_KIND)
    if fits(a, TYPES[t])
]
ARCHS = list(ARCHITECTURES)

F32 = NDArray[np.float32]
Tiny = Callable[[str, str], Path]
Real = Callable[[str], Path]


def same(got: F32, want: F32) -> None:
    """Equal bits; NaN would be equal to itself here, so it is refused."""
    assert got.shape == want.shape
    assert np.isfinite(want).all()
    if not np.array_equal(got.view(np.uint32), want.view(np.uint32)):
        rows = np.flatnonzero((got != want).any(axis=1))
        worst = float(np.abs(got - want).max())
        pytest.fail(f"{len(rows)} of {len(got)} positions differ, first {rows[0]}, by <= {worst:g}")


@pytest.fixture(params=CASES, ids="-".join)
def model(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Model]:
    with Model.load(tiny(*request.param)) as m:
        yield m


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunks(model: Model, chunk: int, kv: str) -> None:
    """The same prompt in steps of 1, 7, 32 tokens, and of 512 (the one compared with)."""
    tokens = random_tokens(130, model.info.n_vocab)
    same(logits_of(model, tokens, chunk, kv), logits_of(model, tokens, 512, kv))


@pytest.mark.parametrize("weight_type", list(TYPES))
def test_chunks_of_every_size(tiny: Tiny, weight_type: str) -> None:
    """A matmul takes other paths for 1, a few and many columns, in tiles of several sizes."""
    with Model.load(tiny("llama", weight_type)) as m:
        tokens = random_tokens(120, m.info.n_vocab)
        want = logits_of(m, tokens)
        for chunk in (*range(2, 18), 95, 97):
            n = min(3 * chunk, len(tokens))
            same(logits_of(m, tokens[:n], chunk), want[:n])


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("chunk", [1, 32, 300])
def test_chunks_over_a_split(tiny: Tiny, arch: str, chunk: int) -> None:
    """Past 512 tokens, where attention adds a second split."""
    with Model.load(tiny(arch, "Q4_K")) as m:
        tokens = random_tokens(580, m.info.n_vocab)
        same(logits_of(m, tokens, chunk), logits_of(m, tokens, 512))


@pytest.mark.parametrize("kv", KV_TYPES)
def test_batch_of_prefill_and_decode(model: Model, kv: str) -> None:
    """Sequences of all ages in each step: some decode, some prefill, some join late."""
    n_vocab = model.info.n_vocab
    prompts = [random_tokens(n, n_vocab, seed=n) for n in (70, 33, 90, 5)]
    schedule = [
        {0: 40, 1: 1},
        {0: 1, 1: 31, 2: 64},
        {0: 1, 1: 1, 2: 1, 3: 3},
        {0: 28, 2: 25, 3: 1},
        {3: 1},
    ]
    got = run_schedule(model, prompts, schedule, kv)
    for prompt, logits in zip(prompts, got, strict=True):
        same(logits, logits_of(model, prompt, 512, kv))


def run_schedule(
    model: Model, prompts: list[list[int]], schedule: list[dict[int, int]], kv: str
) -> list[F32]:
    """Runs steps that feed so many tokens of so many prompts; logits [n_tokens, n_vocab] each."""
    with runner_of(model, kv) as runner:
        sequences = [runner.new_sequence() for _ in prompts]
        done = [0] * len(prompts)
        parts: list[list[F32]] = [[] for _ in prompts]
        for step in schedule:
            feeds = [Feed(sequences[i], prompts[i][done[i] : done[i] + n]) for i, n in step.items()]
            logits = runner.step(feeds, all_logits=True).logits
            assert logits is not None
            at = 0
            for i, n in step.items():
                parts[i].append(logits[at : at + n])
                at += n
                done[i] += n
        assert done == [len(p) for p in prompts]
        return [np.concatenate(p) for p in parts]


def test_rows_of_sampled_sequences(model: Model) -> None:
    """Without all_logits a step gives the last row of each feed, and a greedy sample is its
    argmax."""
    prompts = [random_tokens(n, model.info.n_vocab, seed=n) for n in (40, 1, 17)]
    with runner_of(model) as runner:
        feeds = [Feed(runner.new_sequence(), p) for p in prompts]
        out = runner.step(feeds, want_logits=True)
    assert out.logits is not None
    for prompt, row, token in zip(prompts, out.logits, out.tokens, strict=True):
        same(row[None], logits_of(model, prompt)[-1:])
        assert token == int(row.argmax())


@pytest.mark.parametrize(("arch", "weight_type"), CASES, ids=map("-".join, CASES))
def test_threads_and_layout(tiny: Tiny, arch: str, weight_type: str) -> None:
    """1, 2 and 3 threads, from panels and straight from the mapped file."""
    path = tiny(arch, weight_type)
    with Model.load(path, n_threads=2) as m:
        assert m.info.n_threads == 2
        tokens = random_tokens(75, m.info.n_vocab)
        want = logits_of(m, tokens)
    for n_threads in (1, 3):
        same(load_logits(path, tokens, n_threads=n_threads), want)
    for n_threads in (1, 2):
        same(load_logits(path, tokens, n_threads=n_threads, raw_weights=True), want)


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(("arch", "weight_type"), CASES, ids=map("-".join, CASES))
def test_instruction_sets(tiny: Tiny, arch: str, weight_type: str, kv: str) -> None:
    """Every instruction set here gives the same bits; a forced one is the one that ran."""
    assert "scalar" in ISAS
    path = tiny(arch, weight_type)
    got = {}
    for isa in ISAS:
        with Model.load(path, isa=isa) as m:
            assert m.info.isa == isa
            got[isa] = logits_of(m, random_tokens(50, m.info.n_vocab), kv=kv)
    for isa in ISAS:
        same(got[isa], got["scalar"])


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("n_shared", [32, 45, 100])
def test_shared_blocks(model: Model, n_shared: int, kv: str) -> None:
    """Forks that go different ways from inside a block, and the one they left, equal fresh runs."""
    n_vocab = model.info.n_vocab
    prefix = random_tokens(n_shared, n_vocab)
    tails = [random_tokens(50, n_vocab, seed=s) for s in (1, 2, 3)]
    with runner_of(model, kv) as runner:
        first = runner.new_sequence()
        feed_chunks(runner, first, prefix, 512)
        sequences = [first, runner.fork(first), runner.fork(first)]
        feeds = [Feed(s, t) for s, t in zip(sequences, tails, strict=True)]
        logits = runner.step(feeds, all_logits=True).logits
    assert logits is not None
    for i, tail in enumerate(tails):
        same(logits[50 * i : 50 * (i + 1)], logits_of(model, prefix + tail, 512, kv)[n_shared:])


def test_used_blocks(model: Model) -> None:
    """Blocks that another sequence filled and gave back, also through the system's hands."""
    tokens = random_tokens(100, model.info.n_vocab)
    want = logits_of(model, tokens)
    with runner_of(model, n_ctx_tokens=128, max_sequences=1, max_batch_tokens=128) as runner:
        for seed in (5, 6):
            other = runner.new_sequence()
            feed_chunks(runner, other, random_tokens(128, model.info.n_vocab, seed), 128)
            runner.free(other)
            if seed == 6:
                runner.release_idle()
            mine = runner.new_sequence()
            same(feed_chunks(runner, mine, tokens, 100), want)
            runner.free(mine)


def decode_by_steps(
    runner: Runner, feeds: list[Feed], k: int, stop_tokens: tuple[int, ...] = ()
) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in feeds]
    last = [f.tokens[0] for f in feeds]
    for _ in range(k):
        step = [Feed(f.sequence, [t], True, f.sampler) for f, t in zip(feeds, last, strict=True)]
        tokens = runner.step(step).tokens
        last = [int(t) for t in tokens if t is not None]
        for row, token in zip(out, last, strict=True):
            row.append(token)
        if set(last) & set(stop_tokens):
            break
    return out


#: Greedy, temperature alone, a default chain with penalties, the rest of the chain, mirostat.
SAMPLING = (
    None,
    GenerateParams(temperature=0.8, top_k=0, top_p=1, min_p=0),
    GenerateParams(temperature=1.5, repeat_penalty=1.3, frequency_penalty=0.2),
    GenerateParams(
        temperature=1.2,
        dynatemp_range=0.5,
        top_k=0,
        typical_p=0.9,
        top_n_sigma=3,
        xtc_probability=0.5,
        xtc_threshold=0.05,
        dry_multiplier=0.8,
        dry_allowed_length=1,
    ),
    GenerateParams(temperature=1.0, mirostat=2, mirostat_tau=4, mirostat_eta=0.3),
)


def started(runner: Runner, n_vocab: int) -> list[Feed]:
    """Sequences after their prompts, each with its own sampling and one token to feed."""
    feeds = []
    for i, (n, params) in enumerate(zip([30, 61, 3, 17, 40], SAMPLING, strict=True)):
        prompt = random_tokens(n, n_vocab, seed=n)
        sequence = runner.new_sequence()
        runner.step([Feed(sequence, prompt[:-1], sample=False)])
        sampler = None
        if params is not None:
            sampler = Sampler(replace(params, seed=i + 2**40), n_vocab)
            sampler.accept(prompt)
        feeds.append(Feed(sequence, prompt[-1:], True, sampler))
    return feeds


def test_decode_equals_steps(model: Model) -> None:
    """decode(k) in one call, in two, one sequence at a time, and as k steps: the same tokens."""
    n_vocab, k = model.info.n_vocab, 40
    with runner_of(model) as runner:
        want = decode_by_steps(runner, started(runner, n_vocab), k)
    assert len({tuple(row) for row in want}) == len(want)
    with runner_of(model) as runner:
        assert decode_ids(runner, started(runner, n_vocab), k) == want
    with runner_of(model) as runner:
        feeds = started(runner, n_vocab)
        head = decode_ids(runner, feeds, 11)
        rest = [
            Feed(f.sequence, [row[-1]], True, f.sampler) for f, row in zip(feeds, head, strict=True)
        ]
        tail = decode_ids(runner, rest, k - 11)
    assert [a + b for a, b in zip(head, tail, strict=True)] == want
    with runner_of(model) as runner:
        assert [decode_ids(runner, [f], k)[0] for f in started(runner, n_vocab)] == want


def test_decode_stops(model: Model) -> None:
    """A stop token of any sequence ends the run after its step, and the run can go on."""
    n_vocab = model.info.n_vocab
    with runner_of(model) as runner:
        want = decode_by_steps(runner, started(runner, n_vocab), 30)
    stop = want[1][7]
    at = min(row.index(stop) for row in want if stop in row)
    with runner_of(model) as runner:
        feeds = started(runner, n_vocab)
        got = decode_ids(runner, feeds, 30, [stop, n_vocab - 1])
        cut = len(got[0])
        assert cut <= at + 1
        assert got == [row[:cut] for row in want]
        assert any(row[-1] in (stop, n_vocab - 1) for row in got)
        rest = [
            Feed(f.sequence, [row[-1]], True, f.sampler) for f, row in zip(feeds, got, strict=True)
        ]
        assert decode_ids(runner, rest, 30 - cut) == [row[cut:] for row in want]


class Schedule:
    """Random work on one runner: sequences start, grow by chunks in mixed steps, fork and end.
    Every step's rows are compared with the sequence run alone."""

    def __init__(self, model: Model, kv: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.model, self.kv = model, kv
        self.live: list[tuple[SequenceState, list[int]]] = []

    def pick(self) -> int:
        return int(self.rng.integers(len(self.live)))

    def step(self, runner: Runner) -> None:
        n_vocab = self.model.info.n_vocab
        action = self.rng.random()
        if not self.live or (action < 0.3 and len(self.live) < 6):
            self.live.append((runner.new_sequence(), []))
        elif action < 0.5 and len(self.live) < 6:
            sequence, tokens = self.live[self.pick()]
            self.live.append((runner.fork(sequence), list(tokens)))
        elif action < 0.6:
            runner.free(self.live.pop(self.pick())[0])
        if not self.live:
            return
        chosen = self.rng.permutation(len(self.live))[: 1 + self.pick()]
        feeds = []
        for i in chosen:
            n = int(self.rng.choice([1, 1, 1, 2, 9, 32, 60]))
            feeds.append(Feed(self.live[i][0], self.rng.integers(0, n_vocab, n).tolist()))
        logits = runner.step(feeds, all_logits=True).logits
        assert logits is not None
        at = 0
        for i, feed in zip(chosen, feeds, strict=True):
            tokens = self.live[i][1]
            tokens.extend(feed.tokens)
            n = len(feed.tokens)
            same(logits[at : at + n], logits_of(self.model, tokens, 512, self.kv)[-n:])
            at += n


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_random_schedules(tiny: Tiny, arch: str, kv: str) -> None:
    with Model.load(tiny(arch, "Q4_K")) as m:

        @settings(
            max_examples=200 if FULL else 12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.integers(0, 2**32))
        def run(seed: int) -> None:
            schedule = Schedule(m, kv, seed)
            with runner_of(m, kv) as runner:
                for _ in range(12):
                    schedule.step(runner)
                for sequence, _ in schedule.live:
                    runner.free(sequence)
                for group in range(m.info.n_groups):
                    assert runner.blocks.n_free(group) == runner.blocks.capacity[group]

        run()


# ---- A real model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(real_model: Real) -> Path:
    return real_model("smollm2:135m")


def test_smollm2(smollm2: Path) -> None:
    """Everything above in one run of a real model, whose rows are no whole number of 256."""
    n = 500 if FULL else 150
    with Model.load(smollm2, n_threads=2) as m:
        tokens = random_tokens(n, m.info.n_vocab)
        want = logits_of(m, tokens)
        for chunk in (1, 7, 32) if FULL else (7, 32):
            same(logits_of(m, tokens, chunk), want)
        prompts = [tokens, random_tokens(40, m.info.n_vocab, seed=9)]
        schedule = [{0: n - 20, 1: 1}, {0: 1, 1: 38}, {0: 19, 1: 1}]
        got = run_schedule(m, prompts, schedule, "f16")
        same(got[0], want)
        same(got[1], logits_of(m, prompts[1]))
        with runner_of(m) as runner:
            sampled = decode_by_steps(runner, started(runner, m.info.n_vocab), 10)
        with runner_of(m) as runner:
            assert decode_ids(runner, started(runner, m.info.n_vocab), 10) == sampled
    short = tokens[: n if FULL else 40]
    for load in ({"n_threads": 1}, {"raw_weights": True}, *({"isa": isa} for isa in ISAS)):
        same(load_logits(smollm2, short, **load), want[: len(short)])
