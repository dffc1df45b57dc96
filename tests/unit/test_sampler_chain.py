"""What a sampler promises: ranges, order, the distribution of the whole chain, its state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from reference import sampling as reference
from reference.tolerances import LOGPROB

from localllm.engine.sampling import SAMPLER_IDS, Sampler, breaker_ids, sampler_of
from localllm.errors import ArgumentError
from localllm.params import DEFAULT_ORDER, PARAMETERS, GenerateParams
from localllm.text.tokenizer import Tokenizer

LOGITS = np.array([3, 2.5, 2.5, 2, 1, 0.5, 0, -1, -2, -3, -5, -9], np.float32)
Logits = npt.NDArray[np.float32]

#: Outside the engine's range: (field, value, what the error must say).
OUTSIDE: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "0 to 100"),
    ("temperature", 101.0, "0 to 100"),
    ("dynatemp_range", -1.0, "0 to 100"),
    ("dynatemp_exponent", 0.0, "0.01 to 10"),
    ("top_k", -1, "0 to 2147483647"),
    ("top_p", 1.5, "0 to 1"),
    ("min_p", -0.5, "0 to 1"),
    ("typical_p", 2.0, "0 to 1"),
    ("top_n_sigma", -1.0, "0 to 100"),
    ("xtc_probability", 1.1, "0 to 1"),
    ("xtc_threshold", -0.1, "0 to 1"),
    ("mirostat", 1, "0 and 2"),
    ("mirostat_tau", 21.0, "0 to 20"),
    ("mirostat_eta", -1.0, "0 to 1"),
    ("repeat_penalty", 0.0, "0.1 to 10"),
    ("repeat_last_n", -2, "-1 to 2147483647"),
    ("presence_penalty", 2.5, "-2 to 2"),
    ("frequency_penalty", -2.5, "-2 to 2"),
    ("dry_multiplier", -1.0, "0 to 100"),
    ("dry_base", 0.5, "1 to 10"),
    ("dry_allowed_length", 0, "1 to 2147483647"),
    ("dry_penalty_last_n", -2, "-1 to 2147483647"),
]


def unchecked(**fields: Any) -> GenerateParams:
    """Parameters as they never come from a person: past the table's own checks."""
    params = GenerateParams()
    for name, value in fields.items():
        object.__setattr__(params, name, value)
    return params


@pytest.mark.parametrize(("field", "value", "span"), OUTSIDE)
def test_a_value_out_of_range_is_refused_with_its_range(field: str, value: Any, span: str) -> None:
    with pytest.raises(ArgumentError) as e:
        Sampler(unchecked(**{field: value}), 100)
    assert field in str(e.value) and span in str(e.value)
    if isinstance(value, float):
        with pytest.raises(ArgumentError, match=f"{field} is -?nan"):
            Sampler(unchecked(**{field: math.nan}), 100)


def test_every_number_has_a_row_above_and_its_ends_are_allowed() -> None:
    numbers = {n: p for n, p in PARAMETERS.items() if p.kind in (int, float)}
    assert {field for field, _, _ in OUTSIDE} == set(numbers) - {"seed", "max_tokens", "logprobs"}
    for name, row in numbers.items():
        for end in row.only or (row.low, row.high):
            sampler = Sampler(GenerateParams(**{name: end}), LOGITS.size)
            assert 0 <= sampler.pick(LOGITS, 3) < LOGITS.size


def test_lists_are_checked() -> None:
    for params, words in (
        (unchecked(logit_bias=((100, 1.0),)), "logit_bias.0. is token 100, allowed are 0 to 99"),
        (unchecked(logit_bias=((5, math.nan),)), "logit_bias.0. is -?nan"),
        (unchecked(logit_bias=((5, 101.0),)), "-100 to 100"),
        (unchecked(samplers=("top_k", "top_k")), "top_k is in the order twice"),
    ):
        with pytest.raises(ArgumentError, match=words):
            Sampler(params, 100)
    with pytest.raises(ArgumentError, match=r"banned.0. is token -1"):
        Sampler(GenerateParams(ignore_eos=True), 100, stop_ids=[-1])
    with pytest.raises(ArgumentError, match=r"dry_breakers.1. is token 100"):
        Sampler(GenerateParams(), 100, breaker_ids=[99, 100])
    with pytest.raises(ArgumentError, match="n_vocab is 0"):
        Sampler(GenerateParams(), 0)
    with pytest.raises(ArgumentError, match="token"):
        Sampler(GenerateParams(), 100).accept([5, 100])
    with pytest.raises(ArgumentError, match="11 elements, expected 12"):
        Sampler(GenerateParams(), 12).pick(LOGITS[:11].copy(), 0)


def test_names_are_those_of_the_parameters() -> None:
    assert tuple(SAMPLER_IDS) == DEFAULT_ORDER


def picks(params: GenerateParams, logits: Logits, positions: range = range(400)) -> set[int]:
    sampler = Sampler(params, logits.size)
    return {sampler.pick(logits, position) for position in positions}


def test_order_is_settable() -> None:
    """p of the likeliest three is 0.38, 0.23, 0.23: top-p of what top-k left keeps two tokens,
    the other way round top-p keeps three; a sampler left out does not run."""
    params = GenerateParams(temperature=2, top_k=3, top_p=0.7, min_p=0, seed=1)
    assert picks(replace(params, samplers=("top_k", "top_p", "temperature")), LOGITS) == {0, 1}
    assert picks(replace(params, samplers=("top_p", "top_k", "temperature")), LOGITS) == {0, 1, 2}
    assert picks(replace(params, samplers=("top_k", "temperature")), LOGITS) == {0, 1, 2}
    assert picks(replace(params, samplers=("top_p", "temperature")), LOGITS) == {0, 1, 2}
    hot = picks(replace(params, samplers=("temperature", "top_p")), LOGITS)
    assert hot > {0, 1, 2}  # at a temperature of 2 it takes more tokens to reach 0.7
    assert len(picks(replace(params, samplers=()), LOGITS)) > 5


def test_greedy_comes_after_bias_penalties_and_dry() -> None:
    greedy = GenerateParams(temperature=0)
    assert picks(greedy, LOGITS) == {0}
    assert picks(replace(greedy, logit_bias=((7, 5.0),)), LOGITS) == {7}
    assert picks(replace(greedy, logit_bias=((0, -math.inf),)), LOGITS) == {1}
    assert picks(replace(greedy, xtc_probability=1, xtc_threshold=0.01), LOGITS) == {0}
    assert picks(replace(greedy, mirostat=2, dynatemp_range=1), LOGITS) == {0}
    repeated = Sampler(replace(greedy, presence_penalty=1), LOGITS.size)
    repeated.accept([0, 1])
    assert repeated.pick(LOGITS, 0) == 2
    dry = Sampler(replace(greedy, dry_multiplier=10), LOGITS.size)
    dry.accept([5, 6, 0, 5, 6])
    assert dry.pick(LOGITS, 0) == 1


def test_banned_tokens_never_come() -> None:
    params = GenerateParams(temperature=2, ignore_eos=True, logit_bias=((0, 100.0),), min_p=0)
    sampler = Sampler(params, LOGITS.size, stop_ids=[0, 2])
    got = {sampler.pick(LOGITS, position) for position in range(500)}
    assert not got & {0, 2} and len(got) > 4
    without = Sampler(replace(params, ignore_eos=False), LOGITS.size, stop_ids=[0, 2])
    assert without.pick(LOGITS, 0) == 0
    everything = Sampler(GenerateParams(ignore_eos=True), 3, stop_ids=[0, 1, 2])
    assert everything.pick(LOGITS[:3].copy(), 0) == -1


@pytest.mark.parametrize(
    "params",
    [
        GenerateParams(),
        GenerateParams(temperature=0),
        GenerateParams(mirostat=2),
        GenerateParams(dynatemp_range=1),
    ],
)
def test_odd_logits(params: GenerateParams) -> None:
    nan, inf = math.nan, math.inf
    for values, want in (
        ([nan, 1, -inf], 1),
        ([nan, inf, 3, inf], 1),
        ([nan, -inf, nan], -1),
        ([-3e38, nan, -inf], 0),
        ([3e38, -3e38, nan], 0),
    ):
        logits = np.array(values, np.float32)
        assert Sampler(params, logits.size).pick(logits, 9) == want


WHOLE = GenerateParams(
    temperature=1.3,
    seed=11,
    top_k=9,
    top_p=0.97,
    min_p=0.02,
    typical_p=0.98,
    top_n_sigma=2.5,
    xtc_probability=0.4,
    xtc_threshold=0.15,
    dynatemp_range=0.4,
    repeat_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    dry_multiplier=0.5,
    dry_allowed_length=1,
    logit_bias=((3, 0.7), (4, -0.5)),
)
HISTORY = [0, 3, 5, 0, 3]


def exact_distribution() -> npt.NDArray[np.float64]:
    """Of the whole chain: what it leaves with XTC's coin up and down, in their proportion."""
    p = np.zeros(LOGITS.size)
    for share, probability in ((0.4, 1.0), (0.6, 0.0)):
        params = replace(WHOLE, xtc_probability=probability)
        left = reference.candidates(params, LOGITS, history=HISTORY)
        p[left.ids] += share * left.p
    return p


@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_chi_square_of_the_whole_chain(over: str) -> None:
    n, p = 20_000, exact_distribution()
    seen = np.zeros(LOGITS.size)
    sampler = Sampler(WHOLE, LOGITS.size)
    sampler.accept(HISTORY)
    for i in range(n if over == "positions" else n // 4):
        if over == "seeds":
            sampler = Sampler(replace(WHOLE, seed=i), LOGITS.size)
            sampler.accept(HISTORY)
        seen[sampler.pick(LOGITS, i if over == "positions" else 7)] += 1
    can = p > 0
    assert can.sum() > 5 and not seen[~can].any()
    chi = float(((seen[can] - seen.sum() * p[can]) ** 2 / (seen.sum() * p[can])).sum())
    freedom = int(can.sum()) - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("tau", [3.0, 4.5])
def test_mirostat_keeps_the_surprise_near_tau(tau: float) -> None:
    """Over 4000 tokens of a Zipf distribution whose own mean surprise is 6 bits."""
    x = (-1.2 * np.log(np.arange(1, 2001))).astype(np.float32)
    p = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
    assert -(p * np.log2(p)).sum() > 5.5
    sampler = Sampler(GenerateParams(temperature=1, seed=5, mirostat=2, mirostat_tau=tau), x.size)
    surprise = []
    for position in range(4000):
        token = sampler.pick(x, position)
        sampler.accept([token])
        surprise.append(-math.log2(p[token]))
    assert abs(np.mean(surprise) - tau) < 0.05


def test_a_clone_goes_on_like_its_original_and_apart_from_it() -> None:
    for params in (
        WHOLE,
        replace(WHOLE, mirostat=2, mirostat_tau=3),
        replace(WHOLE, repeat_last_n=2),
    ):
        one = Sampler(params, LOGITS.size)
        one.accept(HISTORY * 30)
        two = one.clone()
        for position in range(50):
            token = one.pick(LOGITS, position)
            assert token == two.pick(LOGITS, position)
            one.accept([token])
            two.accept([token])
        for _ in range(8):
            two.accept([0])
        assert any(one.pick(LOGITS, i) != two.pick(LOGITS, i) for i in range(100))


@pytest.mark.parametrize("last_n", [1, 3, 64, 100, -1])
def test_the_window_of_penalties_moves(last_n: int) -> None:
    """A token is penalised as long as it is among the last ones, however they were told of."""
    params = GenerateParams(temperature=0, repeat_last_n=last_n, presence_penalty=2)
    sampler, tokens = Sampler(params, LOGITS.size), [0] + [11] * 200
    for n, token in enumerate(tokens):
        sampler.accept([token])
        inside = last_n < 0 or n < last_n
        assert sampler.pick(LOGITS, 0) == (1 if inside else 0), n
    at_once = Sampler(params, LOGITS.size)
    at_once.accept(tokens)
    assert at_once.pick(LOGITS, 0) == sampler.pick(LOGITS, 0)


@pytest.mark.parametrize("n_top", [0, 1, 5, 20])
def test_logprobs(n_top: int) -> None:
    rng = np.random.default_rng(n_top)
    for n in (1, 2, 19, 500, 70_000):
        logits = (rng.standard_normal(n) * 4).round(1).astype(np.float32)
        logits[rng.integers(0, n, n // 3)] = -np.inf
        logits[rng.integers(0, n)] = np.nan
        logits[n // 2] = 3
        x = np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))
        want = x - x.max() - math.log(np.exp(x - x.max()).sum())
        top = np.argsort(-want, kind="stable")[: min(n_top, int((x > -np.inf).sum()))]
        token = int(rng.integers(0, n))
        value, pairs = (
            Sampler(WHOLE, n).logprobs(logits, token, n_top)
            if n > 4
            else Sampler(GenerateParams(), n).logprobs(logits, token, n_top)
        )
        assert value == pytest.approx(want[token], abs=LOGPROB.value)
        assert [i for i, _ in pairs] == top.tolist()
        assert [v for _, v in pairs] == pytest.approx(want[top].tolist(), abs=LOGPROB.value)
    with pytest.raises(ArgumentError, match="0 to 20"):
        Sampler(GenerateParams(), 12).logprobs(LOGITS, 0, 21)


def test_random_parameters_never_pick_a_masked_token() -> None:
    """Any parameters in their ranges, over logits with every kind of value."""
    rng = np.random.default_rng(3)
    special = [math.nan, -math.inf, 3.4e38, -3.4e38, 0.0, 1e-40]
    for _ in range(1500):
        n = int(rng.choice([1, 2, 5, 130, 700]))
        fields: dict[str, Any] = {
            "samplers": tuple(rng.permutation(DEFAULT_ORDER)[: rng.integers(10)])
        }
        for name, row in PARAMETERS.items():
            if row.kind is float and rng.random() < 0.6:
                fields[name] = float(
                    rng.choice([row.low, row.high, rng.uniform(row.low, row.high)])
                )
            elif row.kind is int and name not in ("max_tokens", "logprobs") and rng.random() < 0.5:
                ends = row.only or (row.low, row.high, int(rng.integers(1, 50)))
                fields[name] = int(ends[rng.integers(len(ends))])
        bias = {int(t): float(rng.uniform(-100, 100)) for t in rng.integers(0, n, 2)}
        params = GenerateParams(logit_bias=tuple(bias.items()), ignore_eos=True, **fields)
        banned = sorted({*rng.integers(0, n, n // 4).tolist()})
        sampler = Sampler(params, n, stop_ids=banned, breaker_ids=banned[:1])
        for position in range(6):
            logits = (rng.standard_normal(n) * 5).astype(np.float32)
            odd = rng.random(n) < rng.choice([0, 0.2, 1])
            logits[odd] = rng.choice(special, int(odd.sum())).astype(np.float32)
            before = logits.copy()
            token = sampler.pick(logits, position)
            assert np.array_equal(before.view(np.int32), logits.view(np.int32))
            can = np.flatnonzero(logits > -np.inf)
            can = can[~np.isin(can, banned)]
            assert token in can if can.size else token == -1, params.changed()
            if token >= 0:
                sampler.accept([token] * int(rng.integers(1, 4)))


def test_breakers_are_the_tokens_that_contain_a_string(vocabulary: Tokenizer) -> None:
    strings = ("\n", "he", "*")
    want = [
        i
        for i in range(vocabulary.n_vocab)
        if any(s.encode() in vocabulary.token_bytes(i) for s in strings)
    ]
    assert breaker_ids(vocabulary, strings) == want and len(want) > 2
    assert breaker_ids(vocabulary, ()) == []


def test_sampler_of_an_answer(vocabulary: Tokenizer) -> None:
    """DRY sees the breakers, ignore_eos the tokens that end an answer."""
    logits = np.zeros(vocabulary.n_vocab, np.float32)
    stop = min(vocabulary.stop_ids)
    logits[stop] = 50
    assert sampler_of(GenerateParams(), vocabulary).pick(logits, 0) == stop
    assert sampler_of(GenerateParams(ignore_eos=True), vocabulary).pick(logits, 0) != stop
    newline = vocabulary.encode("\n")[0]
    other = vocabulary.encode("x")[0]
    params = GenerateParams(temperature=0, dry_multiplier=100, dry_allowed_length=1)
    for sequence_breakers, repeats in ((("\n",), True), ((), False)):
        sampler = sampler_of(replace(params, dry_sequence_breakers=sequence_breakers), vocabulary)
        sampler.accept([newline, other, newline])
        logits[:] = 0
        logits[other] = 1
        assert (sampler.pick(logits, 0) == other) == repeats


@pytest.fixture(scope="module")
def vocabulary(tiny: Callable[[str, str], Any]) -> Tokenizer:
    from localllm.store.inspect import GgufFile

    with GgufFile(tiny("llama", "F32")) as file:
        return Tokenizer.from_metadata(file.metadata)
