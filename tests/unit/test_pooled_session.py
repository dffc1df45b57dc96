"""Sessions that share a model: the bits of a session alone, back from the disk after a kill -9, and
gone from it with their conversation."""

from __future__ import annotations

import ast
import dataclasses
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins.conditions import wait

from localllm import paths, pooled_session
from localllm.engine.cost_curve import CostCurve
from localllm.errors import ArgumentError, ContextFullError
from localllm.params import GenerateParams
from localllm.pooled_session import Keeping, Pool, PooledSession, open_pool
from localllm.session import Chunk, Session

PARAMS = GenerateParams(seed=5, temperature=0.9, max_tokens=40, ignore_eos=True, logprobs=2)
N_CTX = 512
SLOW = CostCurve((1, 64), (1.0, 64.0))  # nothing is quicker than to read
SYSTEM = {"role": "system", "content": "You are a careful assistant, and you always say so first."}

Tiny = Callable[[str, str], Path]
Open = Callable[[], Pool]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    monkeypatch.setattr("localllm.engine.service.measured", lambda *args: SLOW)
    return tmp_path


@pytest.fixture
def opened(tiny: Tiny) -> Iterator[Open]:
    """Pools of a process each, as far as the disk can tell."""
    pools: list[Pool] = []

    def open_() -> Pool:
        path = tiny("llama", "Q4_0")
        pool = open_pool(path, Keeping(), n_ctx=N_CTX, n_threads=1, digest="sha256:a", label="tiny")
        assert isinstance(pool, Pool)
        pools.append(pool)
        return pool

    yield open_
    for pool in pools:
        pool.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def joined(chunks: Iterator[Chunk]) -> tuple[Any, ...]:
    every = list(chunks)
    ids = tuple(token for chunk in every for token in chunk.token_ids)
    logprobs = [each for chunk in every for each in chunk.logprobs]
    return "".join(c.text for c in every), ids, logprobs, every[-1].finish_reason


def talk(session: PooledSession | Session, questions: list[str]) -> list[Any]:
    """The answers of a conversation."""
    messages, answers = [SYSTEM], []
    for question in questions:
        messages.append(user(question))
        answers.append(joined(session.chat(messages, PARAMS)))
        messages.append({"role": "assistant", "content": answers[-1][0]})
    return answers


def flush(pool: Pool) -> None:
    pool.flush()
    assert pool.keeping.transcripts._files is not None
    pool.keeping.transcripts._files.flush()


def files() -> set[Path]:
    return {path for path in paths.current().kv.rglob("*") if path.is_file()}


def test_it_gives_what_a_session_alone_gives(opened: Open, tiny: Tiny) -> None:
    questions = ["hello <|im_end|> there", "and é?", "more"]
    with opened().session() as pooled, Session.open(tiny("llama", "Q4_0"), n_ctx=N_CTX) as alone:
        assert talk(pooled, questions) == talk(alone, questions)
        assert pooled.answer is not None and alone.answer is not None
        mine, theirs = (
            dataclasses.asdict(dataclasses.replace(each.answer, created="", model=""))
            for each in (pooled, alone)
        )
        del mine["fingerprint"]["model_digest"], theirs["fingerprint"]["model_digest"]
        assert mine == theirs
        assert pooled.context_used == alone.context_used
        for name in ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens"):
            assert getattr(pooled.stats, name) == getattr(alone.stats, name), name
        assert pooled.stats.cached_tokens > 0 and pooled.stats.decode_s > 0
        assert pooled.info.description == alone.info.description
        assert joined(pooled.complete("Once", PARAMS)) == joined(alone.complete("Once", PARAMS))


def test_a_conversation_goes_on_where_another_process_left_it(opened: Open) -> None:
    first = opened()
    session = first.session()
    (text, *_), *_ = talk(session, ["hello there"])
    n_before = session.context_used
    asked = [SYSTEM, user("hello there"), {"role": "assistant", "content": text}, user("more")]
    flush(first)
    # The process is gone as if it had been killed: nothing of it is closed.
    again = opened().session()
    assert joined(again.chat(asked, PARAMS)) == joined(session.chat(asked, PARAMS))
    assert again.stats.cached_tokens == session.stats.cached_tokens == n_before
    assert again.stats.computed_tokens == again.stats.prompt_tokens - n_before


def test_an_answer_that_was_cut_goes_on_as_if_it_had_not_been(opened: Open, tiny: Tiny) -> None:
    greedy = GenerateParams(temperature=0, max_tokens=30, ignore_eos=True)
    asked = [SYSTEM, user("hello there")]
    with opened().session() as pooled, Session.open(tiny("llama", "Q4_0"), n_ctx=N_CTX) as alone:
        for session in (pooled, alone):
            text, ids, *_ = joined(session.chat(asked, greedy))
            for n in range(5, 30):
                begun = joined(session.chat(asked, dataclasses.replace(greedy, max_tokens=n)))[0]
                if "\ufffd" not in begun:
                    break
            cut = [*asked, {"role": "assistant", "content": begun}]
            rest = joined(session.chat(cut, greedy, go_on=True))
            assert session.stats.prompt_tokens - session.stats.cached_tokens == 1
            assert (begun + rest[0]).startswith(text) and rest[1][: 30 - n] == ids[n:]


def test_sessions_of_one_pool_share_what_they_begin_with(opened: Open) -> None:
    pool = opened()
    one, other = pool.session(), pool.session()
    talk(one, ["hello there"])
    shared = one.stats.prompt_tokens
    talk(other, ["hello there"])
    assert other.stats.cached_tokens == shared - 1


def test_a_cancel_ends_an_answer_and_is_taken_back(opened: Open) -> None:
    session = opened().session()
    long = dataclasses.replace(PARAMS, max_tokens=400)
    chunks = session.chat([user("a")], long)
    next(chunks)
    session.cancel()
    assert list(chunks)[-1].finish_reason == "cancelled"
    assert session.answer is not None and session.answer.finish_reason == "cancelled"
    session.cancel()  # before it begins: that counts for the next one
    assert joined(session.chat([user("a")], PARAMS))[3] == "cancelled"
    assert joined(session.chat([user("a")], PARAMS))[3] == "length"
    begun = session.chat([user("a")], long)
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    assert joined(session.chat([user("b")], PARAMS))[3] == "length"


def test_what_cannot_be_answered_is_said(opened: Open) -> None:
    session = opened().session()
    with pytest.raises(ContextFullError, match="the context holds 512"):
        next(session.chat([user("a" * 9000)], PARAMS))
    with pytest.raises(ArgumentError, match=r"x\.png is a picture"):
        next(session.chat([{**user("a"), "images": ["/y/x.png"]}], PARAMS))
    nothing = dataclasses.replace(PARAMS, max_tokens=0)
    assert joined(session.chat([user("a")], nothing)) == ("", (), [], "length")


def test_a_conversation_is_forgotten_and_others_are_not(opened: Open) -> None:
    pool = opened()
    session = pool.session()
    session.conversation = "stays"
    stays = talk(session, ["what stays?", "and why?"])
    flush(pool)
    before = files()
    session.conversation = "goes"
    talk(session, ["what goes, and why does it?", "and where?"])
    chunks = session.chat([SYSTEM, user("what goes, and why does it?"), user("hm")], PARAMS)
    next(chunks)
    session.cancel()
    list(chunks)
    flush(pool)
    more = sum(path.stat().st_size for path in files() - before)
    assert more > 0
    # Somebody else's note of it: another process.
    assert Keeping().conversations.forget("goes") == more
    assert files() == before
    assert Keeping().conversations.forget("goes") == 0
    again = opened().session()
    assert talk(again, ["what stays?", "and why?"]) == stays
    assert again.stats.cached_tokens > 100
    assert Keeping().conversations.forget("stays") > 0
    assert not files()
    assert not list(paths.current().kept_conversations.iterdir())


def test_an_answer_that_a_kill_cut_short_is_forgotten_too(opened: Open) -> None:
    pool = opened()
    session = pool.session()
    session.conversation = "killed"
    chunks = session.chat([user("a")], dataclasses.replace(PARAMS, max_tokens=200))
    next(chunks)
    # All pages are there, and no note is about them: that comes with the last chunk.
    wait(lambda: not pool.service.state().running)
    pool.flush()
    note = next(paths.current().kept_conversations.iterdir())
    with note.open("ab") as file:
        file.write(b'{"folder": "a/b", "sta')  # and a line that was cut short
    assert len(files()) >= 3
    assert Keeping().conversations.forget("killed") > 0
    assert not files()
    session.cancel()
    list(chunks)


@pytest.mark.parametrize(
    "line",
    [
        b'{"folder": "../..", "start": "00", "same": 0, "tokens": [1]}',
        b'{"folder": "a/..", "start": "00", "same": 0, "tokens": [1]}',
        b'{"folder": "a/b", "start": "zz", "same": 0, "tokens": [1]}',
        b'{"folder": "a/b", "start": "00", "same": 0, "tokens": 5}',
        b"[" * 5000,
        b"\xff\x00",
        b"null",
    ],
)
def test_a_damaged_note_deletes_nothing(line: bytes, home: Path) -> None:
    keeping = Keeping()
    path = keeping.conversations._path("a")
    path.parent.mkdir(parents=True)
    path.write_bytes(line + b"\n")
    path.chmod(0o600)
    assert keeping.conversations.forget("a") == 0


_CHILD = """
import sys
from pathlib import Path
from localllm.params import GenerateParams
from localllm.pooled_session import Keeping, open_pool

pool = open_pool(
    Path(sys.argv[1]), Keeping(), n_ctx=512, n_threads=1, digest="sha256:a", label="tiny"
)
session = pool.session()
params = GenerateParams(seed=5, max_tokens=40, ignore_eos=True)
chunks = session.chat([{"role": "user", "content": "hello there " * 8}], params)
text = "".join(chunk.text for chunk in chunks)
pool.flush()
pool.keeping.transcripts._files.flush()
print(session.context_used, ascii(text), flush=True)
sys.stdin.read()
"""


def test_after_kill_9_only_new_tokens_are_computed(opened: Open, tiny: Tiny) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tiny("llama", "Q4_0"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(pooled_session.__file__).parents[1],
    )
    assert child.stdout is not None
    n_kept, text = child.stdout.readline().decode().strip().split(" ", 1)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    session = opened().session()
    asked = [
        user("hello there " * 8),
        {"role": "assistant", "content": ast.literal_eval(text)},
        user("more"),
    ]
    list(session.chat(asked, PARAMS))
    assert session.stats.cached_tokens == int(n_kept)
    assert session.stats.computed_tokens == session.stats.prompt_tokens - int(n_kept)


def test_two_answer_at_once(opened: Open) -> None:
    pool = opened()
    alone = [joined(pool.session().chat([user(text)], PARAMS)) for text in ("one", "two")]
    fresh = opened()
    found: dict[str, Any] = {}

    def ask(text: str) -> None:
        found[text] = joined(fresh.session().chat([user(text)], PARAMS))

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found["one"], found["two"]] == alone


def test_a_base_model_continues(opened: Open) -> None:
    pool = opened()
    session = pool.session(continues=True)
    answer = joined(session.chat([user("Once")], PARAMS))
    assert session.notes == ("tiny is a base model: it continues the text",)
    assert answer == joined(pool.session().complete("Once", PARAMS))
    cut = [user("Once"), {"role": "assistant", "content": " upon"}]
    rest = joined(session.chat(cut, PARAMS, go_on=True))
    assert rest == joined(pool.session().complete("Once upon", PARAMS))
    list(session.chat([SYSTEM, user("Once")], PARAMS))
    assert session.notes[0].endswith("its instructions have no place")


def test_the_end_of_a_session_is_told_once(opened: Open) -> None:
    ends: list[int] = []
    session = opened().session(closed=lambda: ends.append(1))
    session.close()
    session.close()
    assert ends == [1]


def test_a_real_model_goes_on_from_the_disk_as_if_it_had_never_stopped(
    real_model: Callable[[str], Path],
) -> None:
    path = real_model("smollm2:135m")
    messages = [user("Why is the sky blue? " * 12)]
    params = dataclasses.replace(PARAMS, ignore_eos=False)

    def opened_pool() -> Pool:
        pool = open_pool(path, Keeping(), n_ctx=1024, label="smollm2")
        assert isinstance(pool, Pool)
        return pool

    pool = opened_pool()
    first = pool.session()
    answer = joined(first.chat(messages, params))
    flush(pool)
    n_kept = first.context_used
    pool.close()
    asked = [*messages, {"role": "assistant", "content": answer[0]}, user("And at night?")]
    pool = opened_pool()
    again = pool.session()
    second = joined(again.chat(asked, params))
    pool.close()
    assert again.stats.cached_tokens == n_kept > 100
    with Session.open(path, n_ctx=1024) as alone:
        assert joined(alone.chat(messages, params)) == answer
        assert joined(alone.chat(asked, params)) == second
