"""Log probabilities of a prompt's own tokens: those of its logits, to the bit, however the prompt
is cut, whoever runs beside it, and whatever the prefix cache knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from reference.engine import load_logits
from test_service import PARAMS, Answers, ask, opened, prompt

from localllm.engine.job import Choice
from localllm.engine.prompt_logprobs import PromptRows
from localllm.engine.request import Finished, Piece, PromptLogprobs, Request
from localllm.engine.runner import Feed, Model, Runner
from localllm.engine.sampling import Sampled, Sampler
from localllm.engine.service import NativeService
from localllm.errors import ArgumentError
from localllm.params import GenerateParams

Tiny = Callable[[str, str], Path]
NOTHING = replace(PARAMS, max_tokens=0)
LONG = prompt(3, 150)


def expected(path: Path, tokens: Sequence[int], n_top: int) -> tuple[Sampled, ...]:
    logits = load_logits(path, tokens, n_threads=1)
    sampler = Sampler(GenerateParams(), logits.shape[1])
    return tuple(
        Sampled(token, *sampler.logprobs(row, token, n_top), rank=int((row >= row[token]).sum()))
        for row, token in zip(logits, tokens[1:], strict=False)
    )


def asked(service: NativeService, request: Request) -> tuple[tuple[Sampled, ...], list[str | None]]:
    """The rows, and how the answers end."""
    answers = Answers(service, request)
    rows = answers.events.get(timeout=60)
    assert isinstance(rows, PromptLogprobs), rows
    *pieces, last = answers.events.until_end()
    assert isinstance(last, Finished), last
    reasons = [each.chunk.finish_reason for each in pieces if isinstance(each, Piece)]
    return rows.rows, [each for each in reasons if each]


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("batch", [4, 7, 64, 512])
def test_rows_are_those_of_the_logits(tiny: Tiny, arch: str, batch: int) -> None:
    """Also more of them in a step than logits are held at once: 4 rows."""
    path = tiny(arch, "Q4_0")
    service = opened(path, batch=batch)
    try:
        want = expected(path, LONG, 3)
        for params in (NOTHING, replace(PARAMS, max_tokens=2)):
            rows, reasons = asked(service, Request(LONG, params, prompt_logprobs=3))
            assert rows == want and reasons == ["length"]
        assert all(math.isfinite(row.logprob or math.inf) for row in rows)
        assert len({row.rank for row in rows}) > len(rows) // 2
        rows, reasons = asked(service, Request(LONG, NOTHING, n=3, prompt_logprobs=0))
        assert reasons == ["length"] * 3
        assert rows == tuple(row._replace(top=()) for row in want)
    finally:
        service.close()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_short_prompts(tiny: Tiny, n: int, max_tokens: int) -> None:
    path = tiny("llama", "F32")
    service = opened(path)
    try:
        params = replace(PARAMS, max_tokens=max_tokens)
        for tokens in ((9,), (9, 11), (9, 11, 12)):
            rows, reasons = asked(service, Request(tokens, params, n=n, prompt_logprobs=1))
            assert rows == expected(path, tokens, 1) and reasons == ["length"] * n
    finally:
        service.close()


def test_what_the_cache_knows_is_computed_all_the_same(tiny: Tiny) -> None:
    path = tiny("llama", "F32")
    service = opened(path)
    try:
        plain = ask(service, prompt=LONG)[0]
        request = Request(LONG, PARAMS, prompt_logprobs=2)
        answers = Answers(service, request)
        rows = answers.events.get(timeout=60)
        assert isinstance(rows, PromptLogprobs) and rows.rows == expected(path, LONG, 2)
        tokens, last = answers.result()
        assert tokens == plain and last.usage.cached_tokens == 0
        _, last = ask(service, prompt=LONG)
        assert last.usage.cached_tokens == len(LONG) - 1
    finally:
        service.close()


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_many_at_once_lose_their_blocks(
    tiny: Tiny, kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of their prompts, and find again as much as they have rows of."""
    path = tiny("llama", "F32")
    prompts = [prompt(seed, 130 + seed) for seed in range(6)]
    alone = opened(path, kv=kv)
    try:
        want = [asked(alone, Request(each, NOTHING, prompt_logprobs=2))[0] for each in prompts]
    finally:
        alone.close()
    service = opened(path, kv=kv, batch=32)
    scheduler = service._loop.scheduler
    plan = scheduler.plan

    def preempting(*budgets: int) -> list[tuple[Choice, int]]:
        for choice in list(scheduler.running):
            begun = choice.rows is not None and choice.rows.n_reusable > 40
            if begun and not choice.n_preempted:
                scheduler._preempt(choice)
        return plan(*budgets)

    monkeypatch.setattr(scheduler, "plan", preempting)
    try:
        ask(service, prompt=prompts[0])  # now it knows more of this one than there are rows
        others = [Answers(service, Request(prompt(20 + i), PARAMS)) for i in range(3)]
        params = replace(PARAMS, max_tokens=10)
        scored = [Answers(service, Request(each, params, prompt_logprobs=2)) for each in prompts]
        for answers, rows in zip(scored, want, strict=True):
            event = answers.events.get(timeout=60)
            assert isinstance(event, PromptLogprobs) and event.rows == rows
            assert len(answers.result()[0][0]) == 10
        assert all(len(each.result()[0][0]) == 20 for each in others)
        assert service.state().preemptions == len(prompts)
    finally:
        service.close()


def test_a_prompt_that_lost_its_blocks_gives_rows_again() -> None:
    rows = PromptRows((5, 6, 7, 8, 9), 1)
    assert rows.wanted(0, 3) == [6, 7, 8] and rows.wanted(3, 2) == [9, -1]
    some = [Sampled(token, -1.0, ((1, -0.5), (2, -0.6)), rank=token) for token in (6, 7, 8, 9)]
    rows.take(0, some[:2])
    assert rows.n_reusable == 2 and not rows.is_complete
    rows.take(1, some[1:3])
    rows.take(3, some[3:])
    assert rows.is_complete
    assert rows.rows() == tuple(each._replace(top=((1, -0.5),)) for each in some)


def test_next_tokens_that_do_not_fit(tiny: Tiny) -> None:
    with Model.load(tiny("llama", "F32"), n_threads=1) as model:
        runner = Runner(model, n_ctx_tokens=64, max_batch_tokens=16, max_sequences=2)
        try:
            sequence = runner.new_sequence()
            with pytest.raises(ArgumentError, match="2 tokens has 1 next"):
                runner.step([Feed(sequence, [1, 2], next_tokens=[1])])
            with pytest.raises(ArgumentError, match="next token 1 is"):
                runner.step([Feed(sequence, [1, 2], next_tokens=[1, model.info.n_vocab])])
            with pytest.raises(ArgumentError, match="logits"):
                runner.step([Feed(sequence, [1, 2], next_tokens=[1, -1])], want_logits=True)
            with pytest.raises(ArgumentError, match="logprobs: 21"):
                runner.step([Feed(sequence, [1], next_tokens=[1])], n_next_logprobs=21)
            result = runner.step([Feed(sequence, [1, 2, 3], next_tokens=[-1, 3, -1])])
            assert [each.token for each in result.next_logprobs[0]] == [3]
        finally:
            runner.close()
