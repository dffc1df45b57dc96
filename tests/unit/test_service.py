"""Many requests at once: each gets what it would get alone, and what ends leaves nothing behind."""

from __future__ import annotations

import queue
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localllm.engine import loop, scheduler
from localllm.engine.cost_curve import SLOWER, CostCurve
from localllm.engine.exchange import TokenLogprobs
from localllm.engine.open import OpenOptions, Parts, open_parts
from localllm.engine.paged import PagedEngine
from localllm.engine.request import Event, Failed, Finished, Piece, Request
from localllm.engine.runner import Feed, Runner, StepResult
from localllm.engine.sampling import Sampled
from localllm.engine.service import NativeService
from localllm.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    LocalLLMError,
    QueueFullError,
)
from localllm.params import GenerateParams
from localllm.store.inspect import GgufFile

Tiny = Callable[[str, str], Path]
PARAMS = GenerateParams(temperature=0.8, seed=3, max_tokens=20, ignore_eos=True)
LONG = replace(PARAMS, max_tokens=400)
N_CTX = 512
COSTS = CostCurve((1, 64), (0.001, 0.002))  # what is planned depends on no clock


class Events(queue.SimpleQueue[Event]):
    def until_end(self) -> list[Event]:
        found = [self.get(timeout=60)]
        while isinstance(found[-1], Piece):
            found.append(self.get(timeout=60))
        return found


class Answers:
    """The events of a submitted request."""

    def __init__(self, service: NativeService, request: Request) -> None:
        self.events, self.n = Events(), request.n
        self.ticket = service.submit(request, self.events.put)

    def result(self) -> tuple[list[list[int]], Finished]:
        *pieces, last = self.events.until_end()
        assert isinstance(last, Finished), last
        tokens: list[list[int]] = [[] for _ in range(self.n)]
        self.logprobs: list[TokenLogprobs] = []
        for each in pieces:
            assert isinstance(each, Piece)
            tokens[each.index] += each.chunk.token_ids
            self.logprobs += each.chunk.logprobs
        return tokens, last


def prompt(seed: int, n: int = 40) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(5, 200, n).tolist())


def opened(
    path: Path,
    *,
    n_sequences: int = 4,
    n_pool: int = 0,
    kv: str = "f16",
    batch: int = 64,
    max_queue: int = 512,
    costs: CostCurve = COSTS,
) -> NativeService:
    """A service over a pool of n_pool tokens."""
    parts = open_parts(path, OpenOptions(engine="native", n_ctx=N_CTX, kv_type=kv, n_threads=1))
    parts = with_pool(parts, n_sequences, n_pool or 2 * N_CTX, batch)
    return NativeService(parts, "tiny", path.name, max_queue, costs)


def with_pool(parts: Parts, n_sequences: int, n_pool: int, batch: int) -> Parts:
    engine = parts.engine
    assert isinstance(engine, PagedEngine)
    engine.runner.close()
    runner = Runner(
        engine.model,
        kv_type=parts.options.kv_type,
        n_ctx_tokens=n_pool,
        max_batch_tokens=batch,
        max_sequences=n_sequences,
        n_sampled=parts.text.tokenizer.n_vocab,
    )
    parts.engine = PagedEngine(engine.model, runner, N_CTX)
    return parts


@pytest.fixture
def service(tiny: Tiny) -> Iterator[NativeService]:
    with_four = opened(tiny("llama", "F32"))
    yield with_four
    with_four.close()


def ask(service: NativeService, **more: Any) -> tuple[list[list[int]], Finished]:
    return Answers(service, Request(**{"prompt": prompt(0), "params": PARAMS, **more})).result()


Got = tuple[list[list[int]], list[TokenLogprobs]]


def solo(path: Path, kv: str, requests: list[Request]) -> list[Got]:
    """What each request gets from an engine that has nothing else, and finds nothing."""
    service = opened(path, n_sequences=1, kv=kv)
    try:
        return got(
            Answers(service, replace(request, salt=b"%d" % i)) for i, request in enumerate(requests)
        )
    finally:
        service.close()


def got(answers: Iterable[Answers]) -> list[Got]:
    return [(each.result()[0], each.logprobs) for each in answers]


@pytest.mark.parametrize(
    ("arch", "weight", "kv"), [("llama", "Q4_0", "f16"), ("gemma3", "Q4_0", "f16"),
                               ("llama", "F32", "q8_0"), ("gemma3", "F32", "q8_0")],
)  # fmt: skip
def test_sixteen_over_a_pool_for_three(arch: str, weight: str, kv: str, tiny: Tiny) -> None:
    path = tiny(arch, weight)
    shared = prompt(99, 50)
    requests = [
        Request(
            (shared if i % 3 == 0 else ()) + prompt(i, 5 + 11 * i),
            replace(PARAMS, temperature=0.8 * (i % 2), seed=i, max_tokens=100 + i,
                    logprobs=i % 4 if i % 5 == 0 else None),
        )
        for i in range(16)
    ]  # fmt: skip
    alone = solo(path, kv, requests)
    service = opened(path, n_sequences=8, n_pool=N_CTX - 8 * 32, kv=kv)
    try:
        together = [Answers(service, request) for request in requests]
        assert got(together) == alone
        state = service.state()
        assert state.blocks_used == 0 and state.running == state.waiting == 0
        assert state.preemptions > 0 and state.hit_tokens > 0
        assert state.generated_tokens == sum(100 + i for i in range(16))
    finally:
        service.close()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_cache_changes_no_bit(arch: str, tiny: Tiny) -> None:
    service = opened(tiny(arch, "Q4_0"))
    try:
        params = replace(PARAMS, logprobs=20)
        values: list[list[tuple[TokenLogprobs, ...]]] = []
        for salt in (b"", b"", b"other"):
            answers = Answers(service, Request(prompt(1, 150), params, salt=salt))
            *pieces, last = answers.events.until_end()
            assert isinstance(last, Finished)
            assert (last.usage.cached_tokens > 0) == (len(values) == 1)
            values.append([p.chunk.logprobs for p in pieces if isinstance(p, Piece)])
        flat = [[row for rows in each for row in rows] for each in values]
        assert flat[0] == flat[1] == flat[2] and len(flat[0]) == 20
    finally:
        service.close()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_second_turn_computes_only_what_is_new(arch: str, tiny: Tiny) -> None:
    service = opened(tiny(arch, "Q4_0"))
    try:
        first = prompt(1, 150)
        (tokens,), _ = ask(service, prompt=first)
        before = service._loop.counts.computed_tokens
        second = (*first, *tokens, *prompt(2, 10))
        _, last = ask(service, prompt=second)
        assert last.usage.cached_tokens == 150 + 19
        assert service._loop.counts.computed_tokens - before == 1 + 10 + 19
        _, again = ask(service, prompt=second)
        assert again.usage.cached_tokens == len(second) - 1
    finally:
        service.close()


def test_choices_equal_solo_runs_and_share_the_prompt(service: NativeService) -> None:
    before = service._loop.counts.computed_tokens
    four, last = ask(service, n=4, prompt=prompt(1, 100))
    assert service._loop.counts.computed_tokens - before == 99 + 4 * 20
    assert last.usage.prompt_tokens == 100 and last.usage.generated_tokens == 80
    for i, tokens in enumerate(four):
        params = replace(PARAMS, seed=3 + i)
        assert ask(service, params=params, prompt=prompt(1, 100), salt=b"s")[0] == [tokens]
    assert len({tuple(tokens) for tokens in four}) == 4
    _, turn = ask(service, prompt=(*prompt(1, 100), *four[2], 9))
    assert turn.usage.cached_tokens == 100 + 19
    many, _ = ask(service, n=9, prompt=(7,))
    assert [len(tokens) for tokens in many] == [20] * 9 and service.state().blocks_used == 0


def test_others_do_not_change_an_answer(service: NativeService) -> None:
    one = ask(service, salt=b"a")[0]
    ask(service, prompt=prompt(5, 200))
    assert ask(service, salt=b"b")[0] == one


@pytest.mark.parametrize("at", ["queue", "prefill", "decode"])
def test_cancel_leaves_no_block(at: str, tiny: Tiny) -> None:
    service = opened(tiny("llama", "F32"), n_sequences=1, batch=32)
    try:
        holder = Answers(service, Request(prompt(0), LONG)) if at == "queue" else None
        if holder is not None:
            assert isinstance(holder.events.get(timeout=30), Piece)
        long = prompt(1, 500 if at == "prefill" else 40)
        params = replace(LONG, max_tokens=5) if at == "prefill" else LONG
        answers = Answers(service, Request(long, params, n=2 if at == "decode" else 1))
        if at == "decode":
            assert isinstance(answers.events.get(timeout=30), Piece)
        answers.ticket.cancel()
        answers.ticket.cancel()
        last = answers.events.until_end()[-1]
        assert isinstance(last, Failed) and isinstance(last.error, CancelledError)
        if holder is not None:
            holder.ticket.cancel()
            assert isinstance(holder.events.until_end()[-1], Failed)
        assert service.state().blocks_used == 0
        assert ask(service)[1].usage.generated_tokens == 20
    finally:
        service.close()


def test_what_may_not_be_stored_is_not(service: NativeService) -> None:
    ask(service, may_store=False, n=2)
    assert service.state().blocks_cached == 0 and service.state().blocks_used == 0
    assert ask(service)[1].usage.cached_tokens == 0
    assert ask(service, may_store=False)[1].usage.cached_tokens == 39


def test_priority_and_the_end_of_the_queue(tiny: Tiny) -> None:
    service = opened(tiny("llama", "F32"), n_sequences=1, max_queue=3)
    try:
        holder = Answers(service, Request(prompt(0), LONG))
        assert isinstance(holder.events.get(timeout=30), Piece)
        order: list[str] = []
        waiting = []
        for name, priority in (("low", -1), ("first", 0), ("high", 5)):
            events = Events()

            def emit(event: Event, name: str = name, events: Events = events) -> None:
                order.append(name)
                events.put(event)

            service.submit(Request(prompt(0), PARAMS, priority=priority), emit)
            waiting.append(events)
        assert (service.state().running, service.state().waiting) == (1, 3)
        with pytest.raises(QueueFullError):
            service.submit(Request(prompt(0), PARAMS), print)
        holder.ticket.cancel()
        assert all(isinstance(events.until_end()[-1], Finished) for events in waiting)
        assert list(dict.fromkeys(order)) == ["high", "first", "low"]
    finally:
        service.close()


Steps = list[tuple[int, int]]  # (tokens of prompts, decodes) of each


@pytest.fixture
def paced(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[NativeService, Steps]]:
    """By a clock on which a token of a prompt takes 4 ms, four times what the curve says, and a
    step of decodes 10 ms. Prompts of up to 64 tokens are short."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(scheduler, "SHORT_PROMPT_TOKENS", 64)
    curve = CostCurve((1, 8, 64), (0.010, 0.010, 0.066))
    service = opened(tiny("llama", "F32"), n_sequences=4, costs=curve)
    step, decode = service._runner.step, service._runner.decode
    steps: Steps = []

    def timed_step(feeds: list[Feed], **more: Any) -> StepResult:
        n_prompt = sum(len(feed.tokens) for feed in feeds if len(feed.tokens) > 1)
        steps.append((n_prompt, sum(len(feed.tokens) == 1 for feed in feeds)))
        now[0] += 0.010 + 0.004 * n_prompt
        return step(feeds, **more)

    def timed_decode(feeds: list[Feed], k: int, *args: Any, **more: Any) -> list[list[Sampled]]:
        rows = decode(feeds, k, *args, **more)
        steps.extend([(0, len(feeds))] * len(rows[0]))
        now[0] += 0.010 * len(rows[0])
        return rows

    monkeypatch.setattr(service._runner, "step", timed_step)
    monkeypatch.setattr(service._runner, "decode", timed_decode)
    yield service, steps
    service.close()


def test_answers_beside_a_long_prompt_come_at_two_thirds_of_their_pace(
    paced: tuple[NativeService, Steps],
) -> None:
    service, steps = paced
    decodes = [Answers(service, Request(prompt(i), LONG)) for i in range(2)]
    for each in decodes:
        assert isinstance(each.events.get(timeout=30), Piece)
    Answers(service, Request(prompt(9, 450), replace(PARAMS, max_tokens=1))).result()
    for each in decodes:
        each.ticket.cancel()
        each.events.until_end()
    chunks = [i for i, (n_prompt, n) in enumerate(steps) if n_prompt and n == 2]
    while_long = [steps[i] for i in range(chunks[0], chunks[-1])]
    assert sum(steps[i][0] for i in chunks) > 300 and min(n for _, n in while_long) == 2
    assert steps[chunks[1]][0] < steps[chunks[0]][0]  # its price is known by then
    seconds = sum(0.010 + 0.004 * n_prompt for n_prompt, _ in while_long)
    assert 1.3 < seconds / (0.010 * len(while_long)) < SLOWER + 0.1


def test_a_long_prompt_goes_on_while_short_ones_come(paced: tuple[NativeService, Steps]) -> None:
    service, steps = paced
    decodes = [Answers(service, Request(prompt(i), LONG)) for i in range(2)]
    for each in decodes:
        assert isinstance(each.events.get(timeout=30), Piece)
    one = replace(PARAMS, max_tokens=1)
    long = Answers(service, Request(prompt(9, 450), one))
    short = [Answers(service, Request(prompt(20 + i, 30), one)) for i in range(300)]
    long.result()
    both = [n_prompt for n_prompt, n_decodes in steps if n_prompt > 32 and n_decodes == 2]
    assert len(both) >= 20  # steps with a short prompt and a piece of the long one
    for each in [*decodes, *short]:
        each.ticket.cancel()
        each.events.until_end()


def test_what_can_never_be_served(service: NativeService) -> None:
    with pytest.raises(ContextFullError, match="512"):
        service.submit(Request(prompt(0, 600), PARAMS), print)
    with pytest.raises(ArgumentError, match="no token"):
        service.submit(Request((), PARAMS), print)
    with pytest.raises(ArgumentError, match="token id"):
        service.submit(Request((10**6,), PARAMS), print)


def test_a_request_that_fails_fails_alone(tiny: Tiny, tmp_path: Path) -> None:
    """The file's row of one token is not a number."""
    path = tmp_path / "damaged.gguf"
    shutil.copy(tiny("llama", "F32"), path)
    with GgufFile(path) as file:
        rows = file.tensor_bytes("token_embd.weight").tobytes()
        n_embd = next(t.shape[0] for t in file.tensors() if t.name == "token_embd.weight")
    content = path.read_bytes()
    at = content.index(rows) + 150 * n_embd * 4
    nan = np.full(n_embd, np.nan, dtype=np.float32).tobytes()
    path.write_bytes(content[:at] + nan + content[at + len(nan) :])
    service = opened(path)
    clean = replace(PARAMS, logit_bias=((150, -100.0),), temperature=0.0)
    try:
        good = tuple(token if token != 150 else 151 for token in prompt(0))
        alone = ask(service, params=clean, prompt=good, salt=b"a")[0]
        others = [Answers(service, Request(good, clean, salt=b"%d" % i)) for i in range(2)]
        bad = Answers(service, Request((*good[:20], 150), clean))
        last = bad.events.until_end()[-1]
        assert isinstance(last, Failed) and "not a number" in last.error.message
        assert [answers.result()[0] for answers in others] == [alone, alone]
        assert service.state().blocks_used == 0
    finally:
        service.close()


def test_a_step_that_is_refused_is_tried_one_by_one(
    service: NativeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, decode = service._runner.step, service._runner.decode
    n_refused = [0, 0]  # with others, alone

    def refuse(feeds: list[Feed]) -> None:
        if any(150 in feed.tokens for feed in feeds):
            n_refused[len(feeds) == 1] += 1
            raise LocalLLMError("no")

    def refusing_step(feeds: list[Feed], **more: Any) -> StepResult:
        refuse(feeds)
        return step(feeds, **more)

    def refusing_decode(feeds: list[Feed], *args: Any, **more: Any) -> list[list[Sampled]]:
        refuse(feeds)
        return decode(feeds, *args, **more)

    never = replace(PARAMS, logit_bias=((150, -100.0),), max_tokens=200)
    good = tuple(token if token != 150 else 151 for token in prompt(0))
    alone = ask(service, params=never, prompt=good, salt=b"a")[0]
    other = Answers(service, Request(good, never))
    assert isinstance(other.events.get(timeout=30), Piece)
    monkeypatch.setattr(service._runner, "step", refusing_step)
    monkeypatch.setattr(service._runner, "decode", refusing_decode)
    bad = Answers(service, Request((*good[:20], 150), never, n=2))
    (last,) = bad.events.until_end()
    assert isinstance(last, Failed) and last.error.message == "no"
    rest = other.result()[0][0]
    assert len(rest) > 100 and rest == alone[0][-len(rest) :]
    assert n_refused == [1, 1] and service.state().blocks_used == 0


def test_a_fault_is_logged_and_tells_nobody_anything(
    service: NativeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*, alone: bool) -> None:
        raise ValueError("words of a prompt")

    with monkeypatch.context() as patch:
        patch.setattr(service._loop, "step", breaks)
        answers = Answers(service, Request(prompt=prompt(0), params=PARAMS))
        failed = answers.events.until_end()[-1]
    assert isinstance(failed, Failed) and "fault of the engine" in failed.error.message
    assert "words" not in failed.error.message and "ValueError" not in failed.error.message
    assert any(r.exc_info and r.exc_info[0] is ValueError for r in caplog.records)
    assert "words" not in "".join(r.message for r in caplog.records)
    ask(service)  # it goes on


def test_closing_ends_everything(tiny: Tiny) -> None:
    service = opened(tiny("llama", "F32"), n_sequences=1)
    both = [Answers(service, Request(prompt(i), LONG)) for i in range(2)]
    assert isinstance(both[0].events.get(timeout=30), Piece)
    service.close()
    assert all(isinstance(answers.events.until_end()[-1], Failed) for answers in both)
    with pytest.raises(CancelledError):
        service.submit(Request(prompt(0), PARAMS), print)


def test_a_real_model(real_model: Callable[[str], Path]) -> None:
    parts = open_parts(
        real_model("smollm2:135m"), OpenOptions(engine="native", n_ctx=N_CTX), n_sequences=4
    )
    service = NativeService(parts, "smollm2", "smollm2", costs=COSTS)
    try:
        tokenizer = parts.text.tokenizer
        requests = [
            Request(tuple(tokenizer.encode(text)), replace(PARAMS, seed=i, max_tokens=16))
            for i, text in enumerate(["The sea is", "A horse", "Once upon a time", "In 1969"])
        ]
        together = [Answers(service, request) for request in requests]
        got = [answers.result()[0] for answers in together]
        for i, request in enumerate(requests):
            assert ask(service, prompt=request.prompt, params=request.params,
                       salt=b"%d" % i)[0] == got[i]  # fmt: skip
    finally:
        service.close()
