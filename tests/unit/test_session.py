"""A session on a tiny model: answers end as they should, however the caller behaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localllm.engine.runner import Feed, Model, Runner
from localllm.engine.sampling import Sampler
from localllm.errors import ArgumentError
from localllm.params import GenerateParams
from localllm.session import Session

LONG = GenerateParams(temperature=1.0, seed=3, max_tokens=400)
SHORT = GenerateParams(temperature=1.0, seed=3, max_tokens=12)


@pytest.fixture
def path(tiny: Callable[[str, str], Path]) -> Path:
    return tiny("qwen3", "Q8_0")


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    with Session.open(path, n_threads=2) as opened:
        yield opened


def answer(session: Session, params: GenerateParams) -> tuple[str, str | None]:
    chunks = list(session.complete("abc abc", params))
    return "".join(c.text for c in chunks), chunks[-1].finish_reason


def test_same_seed_same_text(session: Session) -> None:
    first = answer(session, SHORT)
    assert first == answer(session, SHORT)
    assert first[1] in ("length", "stop")
    assert session.stats.generated_tokens <= 12
    assert session.stats.prompt_tokens > 0


def test_close_while_a_chunk_is_held(path: Path) -> None:
    session = Session.open(path)
    chunks = session.complete("abc", LONG)
    next(chunks)
    session.close()  # the worker must be out of the native code before its memory goes


def test_a_cancel_before_the_first_chunk_is_kept(session: Session) -> None:
    chunks = session.complete("abc abc", LONG)
    session.cancel()
    assert list(chunks)[-1].finish_reason == "cancelled"
    assert answer(session, SHORT)[1] in ("length", "stop")


def test_cancel_from_another_thread(session: Session) -> None:
    chunks = session.complete("abc abc", LONG)
    next(chunks)
    threading.Thread(target=session.cancel).start()
    reasons = [c.finish_reason for c in chunks]
    assert reasons[-1] in ("cancelled", "stop", "length")
    assert answer(session, SHORT)[1] in ("length", "stop")


def test_a_new_answer_ends_the_one_before(session: Session) -> None:
    whole = answer(session, SHORT)
    left_alone = session.complete("abc abc", LONG)
    next(left_alone)
    assert answer(session, SHORT) == whole


def test_blocks_are_free_after_every_answer(session: Session) -> None:
    runner = session._parts.runner
    for params in (SHORT, LONG):
        chunks = session.complete("abc", params)
        next(chunks)
        del chunks
    list(session.complete("abc", SHORT))
    assert [runner.blocks.n_free(g) for g in range(runner.blocks.n_groups)] == list(
        runner.blocks.capacity
    )


def test_stop_string_is_not_shown(session: Session) -> None:
    text, _ = answer(session, LONG)
    stop = text[5:8]
    cut, reason = answer(session, GenerateParams(1.0, 3, 400, stop=(stop,)))
    assert reason == "stop"
    assert cut == text[: text.find(stop)]


def test_limits_are_errors_with_numbers(session: Session) -> None:
    with pytest.raises(ArgumentError, match="context holds"):
        list(session.complete("abc " * session.info.n_ctx, SHORT))
    assert list(session.complete("abc", GenerateParams(max_tokens=0)))[-1].finish_reason == "length"


def test_context_and_threads_have_limits(path: Path) -> None:
    with pytest.raises(ArgumentError, match="trained on"):
        Session.open(path, n_ctx=10**6)
    with pytest.raises(ArgumentError, match="threads"):
        Session.open(path, n_threads=1000)


def test_only_ids_of_the_tokenizer_are_sampled(path: Path) -> None:
    with Model.load(path, n_threads=1) as model:
        runner = Runner(model, n_ctx_tokens=128, n_sampled=3)
        sequence = runner.new_sequence()
        tokens = list(runner.step([Feed(sequence, [5, 6])]).tokens)
        for seed in range(50):
            last = tokens[-1]
            assert last is not None and 0 <= last < 3
            sampler = Sampler(GenerateParams(temperature=2.0, seed=seed, min_p=0), n_vocab=3)
            tokens += runner.step([Feed(sequence, [last], sampler=sampler)]).tokens
        runner.close()
        with pytest.raises(ArgumentError, match="n_sampled"):
            Runner(model, n_ctx_tokens=128, n_sampled=model.info.n_vocab + 1)
