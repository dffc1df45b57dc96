"""A session on a tiny model: answers end as they should, however the caller behaves."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models

from localllm.engine.runner import Feed, Model, Runner
from localllm.engine.sampling import Sampler
from localllm.errors import ArgumentError, ChatTemplateError, UnsupportedError
from localllm.params import GenerateParams
from localllm.session import Session, refused_template, used_template

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
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


def test_blocks_are_free_once_all_is_forgotten(session: Session) -> None:
    runner = session._parts.engine.runner
    for params in (SHORT, LONG):
        chunks = session.complete("abc", params)
        next(chunks)
        del chunks
    list(session.complete("abc", SHORT))
    assert session.context_used > 0
    session.forget()
    assert session.context_used == 0
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


@pytest.fixture
def chatting(path: Path) -> Iterator[Session]:
    with Session.open(path, n_threads=1, template=TEMPLATE, label="tiny") as opened:
        yield opened


def ask(session: Session, messages: list[dict[str, str]], params: GenerateParams) -> str:
    return "".join(chunk.text for chunk in session.chat(messages, params))


def test_the_second_turn_computes_only_what_is_new(chatting: Session) -> None:
    messages = [{"role": "user", "content": "abc " * 20}]
    first = ask(chatting, messages, SHORT)
    assert chatting.stats.cached_tokens == 0
    asked = chatting.stats.prompt_tokens
    assert ask(chatting, messages, SHORT) == first
    assert chatting.stats.cached_tokens == asked - 1
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    again = ask(chatting, messages, SHORT)
    cached, total = chatting.stats.cached_tokens, chatting.stats.prompt_tokens
    assert asked <= cached < total and chatting.context_used >= total
    chatting.forget()
    assert ask(chatting, messages, SHORT) == again
    assert chatting.stats.cached_tokens == 0


def test_an_answer_can_be_given_again(chatting: Session) -> None:
    params = GenerateParams(seed=7, top_k=5, max_tokens=30, logit_bias=((3, 1.5),))
    text = ask(chatting, [{"role": "user", "content": "one two"}], params)
    record = chatting.answer
    assert record is not None and record.text == text and record.model == "tiny"
    assert record.title == "one two" and record.fingerprint.params["top_k"] == 5
    ask(chatting, [{"role": "user", "content": "something else"}], SHORT)
    assert "".join(c.text for c in chatting.replay(record)) == text
    assert chatting.answer is not None
    assert chatting.answer.id == record.id and chatting.answer.token_ids == record.token_ids
    other = dataclasses.replace(record.fingerprint, arithmetic=99)
    with pytest.raises(ArgumentError, match="arithmetic 99"):
        next(chatting.replay(dataclasses.replace(record, fingerprint=other)))


def test_a_cancelled_answer_is_given_again_up_to_there(
    chatting: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = chatting._engine.decode

    def slowly(*args: Any) -> Any:
        time.sleep(0.02)  # the answer must not end before it is cancelled
        return decode(*args)

    monkeypatch.setattr(chatting._engine, "decode", slowly)
    chunks = chatting.chat([{"role": "user", "content": "abc"}], LONG)
    text = next(chunks).text
    chatting.cancel()
    text += "".join(chunk.text for chunk in chunks)
    record = chatting.answer
    assert record is not None and record.finish_reason == "cancelled" and record.text == text
    assert "".join(c.text for c in chatting.replay(record)) == text


def test_log_probabilities(chatting: Session) -> None:
    params = GenerateParams(temperature=0, logprobs=3, max_tokens=6)
    chunks = list(chatting.complete("abc", params))
    rows = [row for chunk in chunks for row in chunk.logprobs]
    assert len(rows) == sum(len(chunk.token_ids) for chunk in chunks) > 0
    for row in rows:
        values = [value for _, value in row.top]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert row.value == values[0] <= 0  # greedy took the likeliest


def test_ignoring_the_end(chatting: Session) -> None:
    params = GenerateParams(seed=5, temperature=2, top_k=0, top_p=1, min_p=0, max_tokens=200)
    going_on = dataclasses.replace(params, ignore_eos=True)
    chunks = list(chatting.complete("abc", going_on))
    assert chunks[-1].finish_reason == "length"
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert len(ids) == 200
    assert not set(ids) & chatting._parts.text.tokenizer.stop_ids


def test_a_template_that_fails_loses_nothing(path: Path) -> None:
    with Session.open(path, template="{{ raise_exception('no such thing') }}") as session:
        with pytest.raises(ChatTemplateError, match="no such thing"):
            ask(session, [{"role": "user", "content": "abc"}], SHORT)
        assert answer(session, SHORT)[0]


REASONED = "{% for m in messages %}{{ m.content }}{% endfor %}{# <think> </think> #}"


def test_reasoning_is_apart(path: Path) -> None:
    with Session.open(path, template=REASONED) as session:
        assert session.info.can_think
        chunks = list(session.chat([{"role": "user", "content": "a<think>"}], SHORT, think=False))
        assert session.notes == ("this model cannot be told to leave out its reasoning",)
        assert session.answer is not None
        assert "".join(c.reasoning for c in chunks) == session.answer.reasoning


def test_recommended_parameters_are_told(session: Session) -> None:
    assert dict(session.info.recommended) == {}


def test_where_the_template_comes_from(
    chatting: Session, session: Session, real_model: Callable[[str], Path]
) -> None:
    assert (chatting.info.template, session.info.template) == ("argument", "file")
    usual = used_template(real_model("gemma3:270m"))
    assert usual is not None and usual[0] == "fallback:gemma" and "<start_of_turn>" in usual[1]


def test_a_template_that_cannot_be_used_is_refused_before_the_load(
    tmp_path: Path, path: Path
) -> None:
    bare = tmp_path / "bare.gguf"
    bare.write_bytes(small_models.gguf(template=None))
    begun: list[float] = []
    with pytest.raises(UnsupportedError, match="in Go"):
        Session.open(bare, beside="{{ .Prompt }}", progress=begun.append)
    assert not begun  # and the file, whose weights are nonsense, was not complained of
    assert refused_template(bare, "{{ .Prompt }}") is not None
    assert refused_template(bare, "<|im_start|>{{ .Prompt }}<|im_end|>") is None
    assert refused_template(path, "{{ .Prompt }}") is None  # the file's own holds
